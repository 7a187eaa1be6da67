"""Command line: every command ends with 0, or with one sentence on stderr and an exit code."""

import os
import sys
import traceback
from functools import partial

from configs.errors import StopRequested

EXIT_CODES = {FloatingPointError: 5, MemoryError: 6, OSError: 6, ValueError: 2}  # of errors without their own


def run_command(main, args):
    """main(args), and the exit code; debug=true and --debug show the traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # text may have characters that a terminal cannot show
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
            traceback.print_exc()
        if code is not None:
            print(f"error: {message}", file=sys.stderr)
        return code or 1


def explain(error):
    """(exit code, sentence); the code of a bug is None, for it keeps its traceback."""
    message, known = str(error), (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename or 'the disk'}: {error.strerror.lower()}"
    elif isinstance(error, RuntimeError) and not hasattr(error, "exit_code"):
        reason = message.partition("\n")[0]
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in reason:
            return 6, f"out of memory ({reason}); lower train.micro_batch_size, or choose a smaller size="
    return getattr(error, "exit_code", next(known, None)), message or "out of memory"


class SafeStream:
    """A stream that may lose its reader or its disk: that is one warning, and the run continues."""

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
            reason = error.strerror.lower()
            print(f"warning: cannot print any more ({reason}); the run continues", file=sys.stderr)


def discard_output(stream):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
