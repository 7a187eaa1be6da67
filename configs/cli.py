"""Command line: every command ends with 0, or with one sentence on stderr and an exit code."""

import argparse
import builtins
import errno
import os
import re
import sys
import traceback
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

from configs.errors import StopRequested

EXIT_CODES = {
    FloatingPointError: 5,
    MemoryError: 6,
    OSError: 6,
    ValueError: 2,
}  # of errors without their own
CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)  # and bidirectional overrides


def escape(text, keep=""):
    """Spell out control characters: a terminal would act on them."""
    return CONTROL.sub(
        lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode(), str(text)
    )


def print(text="", file=None, end="\n"):
    """Print text that may come from a file or a model."""
    builtins.print(escape(text, keep="\n\t"), file=file, end=end, flush=True)


def warn(text):
    print(f"warning: {text}", file=sys.stderr)


def clock(seconds):
    """1:02, or 1:00:02"""
    hours, seconds = divmod(round(seconds), 3600)
    return (
        f"{hours}:{seconds // 60:02}:{seconds % 60:02}"
        if hours
        else f"{seconds // 60}:{seconds % 60:02}"
    )


def run_command(main, args):
    """main(args), and the exit code; debug=true and --debug show the traceback."""
    reopen_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(
            errors="backslashreplace"
        )  # text may have characters that a terminal cannot show
    with redirect_stderr(SafeStream(sys.stderr)):
        try:
            main(args)
            sys.stdout.flush()
            return 0
        except BrokenPipeError:  # the reader, `head` perhaps, has closed the pipe
            discard_output(sys.stdout)
            return 0
        except KeyboardInterrupt:
            return 130
        except StopRequested as stop:
            return stop.exit_code
        except Exception as error:
            code, message = explain(error)
            if code is None or {"debug=true", "--debug"} & set(args):
                print(traceback.format_exc(), file=sys.stderr)
            if len(message) > 1000:  # it may quote a name of any length
                message = f"{message[:500]} ... {message[-500:]}"
            if code is not None:
                print(f"error: {escape(message)}", file=sys.stderr)
            return code or 1


def explain(error):
    """(exit code, sentence); the code of a bug is None, for it keeps its traceback."""
    message, known = (
        str(error),
        (code for kind, code in EXIT_CODES.items() if isinstance(error, kind)),
    )
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename or 'the disk'}: {error.strerror.lower()}"
        if error.errno == errno.ENAMETOOLONG:
            return 2, message
    elif isinstance(error, RuntimeError) and not hasattr(error, "exit_code"):
        reason = message.partition("\n")[0]
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in reason:
            return 6, f"out of memory ({reason}); use a smaller model, batch or context"
    return getattr(error, "exit_code", next(known, None)), message or "out of memory"


def reopen_streams():
    """Open closed standard streams on the null device: the next file to be opened would get their number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are those of run_command."""

    def error(self, message):
        raise ValueError(message)


def as_utf8(text):
    """The UTF-8 text of an argument or line of input, which Python cannot decode under an ASCII locale."""
    return text.encode(errors="surrogateescape").decode(errors="surrogateescape")


def expand_user(path):
    """The path, with ~ and ~name replaced by home folders."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        name = Path(path).parts[0]
        raise ValueError(f"cannot expand {name} in {path}: the home folder is unknown") from None


class SafeStream:
    """A stream that may lose its reader or its disk: that is one warning, and the command continues."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        attribute = getattr(self.stream, name)
        return partial(self.attempt, attribute) if name in ("write", "flush") else attribute

    def attempt(self, function, *args):
        try:
            return function(*args)
        except OSError as error:
            discard_output(self.stream)
            warn(f"cannot print any more ({error.strerror.lower()}); the run continues")


def discard_output(stream):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
