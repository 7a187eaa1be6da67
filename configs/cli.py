"""Command line: every command ends with 0, or with one sentence on stderr and an exit code."""

import argparse
import builtins
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

# of errors that have none of their own
EXIT_CODES = {FloatingPointError: 5, MemoryError: 6, OSError: 6, ValueError: 2}
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and text direction
LOST_PEER = re.compile("gloo|NCCL|remote process|[Tt]imed out|Connection (closed|reset)")
MAX_SENTENCE = 1000  # characters: it may quote a value of any length


def escape(text: object, keep: str = "") -> str:
    """Spell out control characters, which a terminal would act on."""

    def spell(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in keep else character.encode("unicode_escape").decode()

    return CONTROL.sub(spell, str(text))


def print(text: object = "", file: TextIO | None = None, end: str = "\n") -> None:
    """Print text that may come from a file or a model."""
    builtins.print(escape(text, keep="\n\t"), file=file, end=end, flush=True)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def run_command(main: Callable[[], Any]) -> int:
    """main(), and the exit code of the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # what the terminal cannot show
    try:
        main()
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader, `head` perhaps, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        return report(error)


def report(error: Exception) -> int:
    """Print an error as one sentence, or a bug with its traceback. Returns the exit code."""
    code, sentence = explain(error)
    if code is None or {"debug=true", "--debug"} & set(sys.argv):
        traceback.print_exception(error)
    if code is None:
        return 1
    if len(sentence) > MAX_SENTENCE:
        half = MAX_SENTENCE // 2
        sentence = f"{sentence[:half]} ... {sentence[-half:]}"
    print(f"error: {escape(sentence)}", file=sys.stderr)
    return code


def explain(error: Exception) -> tuple[int | None, str]:
    """(exit code, sentence); the code of a bug is None."""
    message = str(error)
    if hasattr(error, "exit_code"):
        return error.exit_code, message
    if type(error).__module__.partition(".")[0] in ("hydra", "omegaconf"):
        from configs.compose import explain_hydra

        return 2, explain_hydra(error)
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename or 'the disk'}: {error.strerror.lower()}"
    elif isinstance(error, RuntimeError):
        reason = message.partition("\n")[0]
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in reason:
            return (
                6,
                f"out of memory ({reason}); lower train.micro_batch_size, or choose a size=",
            )
        if LOST_PEER.search(message):
            return 7, f"another process of this run has ended or does not respond ({reason})"
    codes = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    return next(codes, None), message or "out of memory"


def run_job(function: Callable[[], float | None]) -> float | None:
    """One run, called by Hydra. The error of a sweep's run is Hydra's, which goes on with the
    next."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    try:
        return function()
    except Exception as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        raise SystemExit(report(error)) from None


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are those of run_command."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def expand_user(path: str | Path) -> Path:
    """The path, with ~ and ~name replaced by home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        name = Path(path).parts[0]
        raise ValueError(f"cannot expand {name} in {path}: the home folder is unknown") from None
