"""Outlet: what a run prints. A reader that leaves, or a disk that is full, ends no run."""

import os
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout


class Outlet:
    """A stream that takes what its place no longer takes, and says so once."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        return self.tried(self.stream.write, text)

    def flush(self):
        self.tried(self.stream.flush)

    def tried(self, act, *args):
        try:
            return act(*args)
        except OSError as error:
            drain(self.stream)
            reason = error.strerror.lower()
            print(f"warning: nothing more can be printed ({reason}); the run goes on", file=sys.stderr)


@contextmanager
def unheard():
    """Within, whoever prints is never refused."""
    with redirect_stdout(Outlet(sys.stdout)), redirect_stderr(Outlet(sys.stderr)):
        yield


def drain(stream):
    """What it holds and what comes after goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
