"""Command: how every command ends. An error is one sentence and an exit code."""

import os
import sys
import traceback

from data.errors import DataError
from model.hub.errors import HubError
from training.errors import CheckpointError, NumbersError

CODES = {
    DataError: 3,
    CheckpointError: 4,
    HubError: 4,
    NumbersError: 5,
    FloatingPointError: 5,
    MemoryError: 6,
    ValueError: 2,
}


def command(main, words):
    """main(words), and what the process should exit with; debug=true shows where an error came from."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # text may hold what a terminal cannot show
    try:
        main(words)
        sys.stdout.flush()
    except tuple(CODES) as error:
        if "debug=true" in words:
            traceback.print_exc()
        said = str(error) or "there is not enough memory"
        print(f"error: {said}", file=sys.stderr)
        return next(code for kind, code in CODES.items() if isinstance(error, kind))
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0
