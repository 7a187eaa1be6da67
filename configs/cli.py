"""Command line: how every command ends: with 0, or with one sentence on stderr and an exit code."""

import os
import re
import sys
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from configs.errors import StopRequested

EXIT_CODES = {FloatingPointError: 5, MemoryError: 6, OSError: 6, ValueError: 2}  # of errors that say none
EXIT_RANK_DIED = 7
PEER_DIED = re.compile("gloo|NCCL|Connection (closed|reset)")  # in torch's message


def run_command(main, args):
    """main(args), and the exit code; debug=true and --debug show the traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # text may hold what a terminal cannot show
    try:
        main(args)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        discard_output(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return 130
    except StopRequested as stop:
        if stop.args:
            print(stop, file=sys.stderr)
        return stop.exit_code
    except Exception as error:
        code, message = exit_code(error), error_message(error)
        if code is None:
            raise
        if {"debug=true", "--debug"} & set(args):
            traceback.print_exc()
        print(f"error: {message}", file=sys.stderr)
        return code


def exit_code(error):
    """None for a bug of ours, which keeps its traceback."""
    if isinstance(error, RuntimeError) and not hasattr(error, "exit_code"):
        if out_of_memory(error):
            return EXIT_CODES[MemoryError]
        return EXIT_RANK_DIED if PEER_DIED.search(str(error).partition("\n")[0]) else None
    known = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    return getattr(error, "exit_code", next(known, None))


def error_message(error):
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the disk'}: {error.strerror.lower()}"
    if isinstance(error, RuntimeError) and not hasattr(error, "exit_code"):
        reason = str(error).partition("\n")[0]
        if out_of_memory(error):
            return f"out of memory ({reason}); lower train.micro_batch_size, or choose a smaller size="
        return "another process of this run has ended; see its own error"
    return str(error) or "out of memory"


def out_of_memory(error):
    return (
        type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error).partition("\n")[0]
    )


class SafeStream:
    """A stream whose reader may leave, or whose disk may fill up: that is said once and stops no run."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        return self.attempt(self.stream.write, text)

    def flush(self):
        self.attempt(self.stream.flush)

    def attempt(self, function, *args):
        try:
            return function(*args)
        except OSError as error:
            discard_output(self.stream)
            print(
                f"warning: cannot print any more ({error.strerror.lower()}); the run continues",
                file=sys.stderr,
            )


@contextmanager
def safe_streams():
    with redirect_stdout(SafeStream(sys.stdout)), redirect_stderr(SafeStream(sys.stderr)):
        yield


def discard_output(stream):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
