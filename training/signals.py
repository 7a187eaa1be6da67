"""Signals: a run that is asked to stop finishes its step and saves; asked twice, it is gone at once."""

import os
import signal
from contextlib import contextmanager

from training.distributed import alone
from training.errors import Stopped

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
heard = []  # by this process; signals are its own, whoever runs in it


@contextmanager
def listening():
    heard.clear()
    before = {number: signal.signal(number, hear) for number in ASKING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.clear()


def hear(number, frame):
    if heard:
        os._exit(128 + number)
    heard.append(number)


def agreed(ranks, device):
    """Raise Stopped in all processes once any of them was asked."""
    stop_for(int(-ranks.least(-max(heard, default=0), device=device)))


def polled(steps):
    """The same steps, until the process is asked; together with others, it waits for the end of the step."""
    for step in steps:
        if alone():
            stop_for(max(heard, default=0))
        yield step


def stop_for(number):
    if number:
        raise Stopped(signal.Signals(number).name)
