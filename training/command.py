"""Command: how every command ends. An error is one sentence and an exit code."""

import os
import sys

from data.errors import DataError


def command(main, words):
    """main(words), and what the process should exit with."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # text may hold what a terminal cannot show
    try:
        main(words)
        sys.stdout.flush()
    except DataError as error:
        return failed(error, 3)
    except ValueError as error:
        return failed(error, 2)
    except MemoryError as error:
        return failed(f"there is not enough memory: {error}", 6)
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


def failed(error, code):
    print(f"error: {error}", file=sys.stderr)
    return code
