"""Command line: every command ends with 0, or with one sentence on stderr and an exit code. It
imports nothing slow."""

import argparse
import builtins
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

# characters that a terminal acts on, but for tabs and line breaks, and marks of text direction
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape(text: object) -> str:
    """Spell out control characters."""
    return CONTROL.sub(lambda match: ascii(match[0]).strip("'"), str(text))


def print(text: object = "", file: TextIO | None = None) -> None:
    """Print text that may come from a file or a model; of several processes, the first does."""
    if file is None and os.environ.get("RANK", "0") != "0":
        return
    builtins.print(escape(text), file=file, flush=True)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def begin() -> None:
    """Until the settings are known there is nothing to clean up, and Ctrl-C ends the process at once:
    imports and Hydra would lose a KeyboardInterrupt, or turn it into another error."""
    open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, end_at_once)


def end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(130)


def settings_known() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_streams() -> None:
    """A scheduler may start a program with closed streams, whose numbers the next files that are
    opened would take; what is printed is dropped then."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def run_command(main: Callable[[], Any]) -> int:
    """main(), and the exit code of the command."""
    open_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal cannot show
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` perhaps, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception as error:
        return report(error)
    return 0


def report(error: Exception) -> int:
    """Print an error as one sentence, or a bug with its traceback. Returns the exit code."""
    from configs.explain import explain

    code, sentence = explain(error)
    if code is None or {"debug=true", "--debug"} & set(sys.argv):
        traceback.print_exception(error)
    if code is not None:
        line = sentence.replace("\n", "\\n")
        print(f"error: {line:.1000}", file=sys.stderr)
    return code or 1


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are those of run_command."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see --help")


def expand_user(path: str | Path) -> Path:
    """The path, with ~ and ~name replaced by home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"cannot expand ~ in {path}: the home folder is unknown") from None
