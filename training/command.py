"""Command: how every command ends. An error is one sentence and an exit code."""

import re
import sys
import traceback

from data.errors import DataError
from model.hub.errors import HubError
from training.errors import BusyError, CheckpointError, DiskError, NumbersError, Stopped
from training.outlet import drain

STOPPED = 75  # "try again later", as sysexits.h has it
LEFT_ALONE = 7
CUT_OFF = re.compile("gloo|NCCL|Connection (closed|reset)")  # in what torch says where a process is missing
CODES = {
    DataError: 3,
    CheckpointError: 4,
    HubError: 4,
    NumbersError: 5,
    FloatingPointError: 5,
    MemoryError: 6,
    DiskError: 6,
    BusyError: 8,
    ValueError: 2,
    OSError: 6,
}


def command(main, words):
    """main(words), and what the process should exit with; debug=true shows where an error came from."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # text may hold what a terminal cannot show
    try:
        main(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        drain(sys.stdout)
    except tuple(CODES) as error:
        if {"debug=true", "--debug"} & set(words):
            traceback.print_exc()
        print(f"error: {said(error)}", file=sys.stderr)
        return next(code for kind, code in CODES.items() if isinstance(error, kind))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in reason:
            print(f"error: no memory left ({reason}); lower train.micro_batch, or choose a smaller size=",
                  file=sys.stderr)  # fmt: skip
            return CODES[MemoryError]
        if CUT_OFF.search(reason):
            print("error: another process of this run has ended; what it said tells why", file=sys.stderr)
            return LEFT_ALONE
        raise
    except Stopped as told:
        if told.args:
            print(told, file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        return 130
    return 0


def said(error):
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the disk'}: {error.strerror.lower()}"
    return str(error) or "there is not enough memory"
