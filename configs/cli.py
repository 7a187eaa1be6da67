"""Command line: a command exits with 0, or with one sentence on stderr and an error code."""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, TextIO

# control characters, except tabs and line breaks, and marks of text direction
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape(text: object) -> str:
    """Escape control characters."""
    return CONTROL.sub(lambda match: ascii(match[0]).strip("'"), str(text))


def print0(text: object = "", file: TextIO | None = None) -> None:
    """Print text that may come from a file or a model, to stdout or `file`. Of the processes that
    torchrun started, only the first does."""
    if os.environ.get("RANK", "0") == "0":
        print(escape(text), file=file, flush=True)


def warn(text: str) -> None:
    print0(f"warning: {text}", file=sys.stderr)


def run_command(main: Callable) -> int:
    """Run main() and return the exit code of the command."""
    if sys.stdout is None:  # some schedulers start programs with it closed
        sys.stdout = StringIO()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal cannot show
    try:
        main()
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return exit_code(error)
    return 0


def run_hydra(main: Callable) -> int:
    """Run a main that is decorated by Hydra, and return its exit code."""
    from configs.compose import prepare_arguments

    def command() -> None:
        sys.argv[1:] = prepare_arguments(sys.argv[1:])
        if "RANK" in os.environ and {"-m", "--multirun"} & set(sys.argv):
            raise ValueError("-m cannot be used with torchrun; start each run by itself")
        # errors of Hydra itself, as of a wrong override: raised, so that run_command prints them
        os.environ["HYDRA_FULL_ERROR"] = "1"
        main()

    return run_command(command)


def exit_code(error: Any) -> int:
    """The exit code of a command that ends with this error, which is printed if it is one. Within
    Hydra, an interrupt is only the context of another error."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return int(error.code or 0)
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as if by SIGPIPE
    cause = error
    while cause and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    if cause:
        return 130
    return report(error)


def report(error: Exception) -> int:
    """Print an error as one sentence, and return the exit code. A bug, or an error that the user's
    own parts raise, has its traceback, too."""
    from configs.explain import explain
    from configs.parts import LOADED

    code, sentence = explain(error)
    frames = traceback.extract_tb(error.__traceback__)
    is_own = any(Path(frame.filename) in LOADED for frame in frames[-1:])
    if code is None or is_own or {"debug=true", "--debug"} & set(sys.argv):
        traceback.print_exception(error)
    if code is not None:
        line = sentence.replace("\n", "\\n")
        print(escape(f"error: {line:.1000}"), file=sys.stderr)  # noqa: T201  by each process
    return code or 1


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are reported by run_command."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see --help")


def expand_user(path: str | Path) -> Path:
    """The path, with ~ and ~name replaced by home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"cannot expand ~ in {path}: the home folder is unknown") from None
