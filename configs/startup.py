"""Start of a command, before its slow imports: standard streams that are closed, and Ctrl-C."""

import os
import signal
import sys
from types import FrameType

settings_are_known = False


def begin() -> None:
    """Until the settings are known there is nothing to clean up, and Ctrl-C ends the process at once:
    imports and Hydra would lose a KeyboardInterrupt, or turn it into another error."""
    global settings_are_known
    settings_are_known = False
    open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, interrupt)


def interrupt(number: int, frame: FrameType | None) -> None:
    if not settings_are_known:
        os._exit(130)
    raise KeyboardInterrupt


def settings_known() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt."""
    global settings_are_known
    settings_are_known = True


def open_streams() -> None:
    """A scheduler may start a program with closed streams, whose numbers the next files that are
    opened would take; what is printed is dropped then."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w")
            setattr(sys, name, stream)
