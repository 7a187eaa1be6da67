"""What happens to a run: at a disk operation, which the shim sees, or at a call of a function.

The shim sees what passes through Python. What safetensors writes passes by it, and is seen only
when it is synced.
"""

import _pyio
import builtins
import errno
import io
import os
import shutil
import signal
from ast import literal_eval
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

from model.transformer import Decoder
from tests.faults.harness import HOME, output_of
from training.checkpointer import Checkpointer

NAMES = ("open", "write", "fsync", "ftruncate", "truncate")
NAMES += ("mkdir", "rename", "replace", "unlink", "rmdir")
UNSEEN_OPEN = open


class Shim:
    """Once installed, act(name, path, argument) at operation number `at` on a path that contains
    `below`, or from then on always. The argument: what is written, a size, a new path, or the
    flags with which a file is created."""

    def __init__(self, act, at=1, below=None, always=False):
        self.act = act
        self.at = at
        self.below = below
        self.always = always
        self.numbers = count(1)

    def __call__(self):
        self.below = self.below or os.getcwd()
        for name in NAMES:
            setattr(os, name, self.watched(name, getattr(os, name)))
        io.open = builtins.open = _pyio.open  # its files call os.open, os.write and os.ftruncate

    def watched(self, name, real):
        def call(target, *arguments, **options):
            argument = arguments[0] if arguments else None
            if name == "write":
                argument = bytes(argument)
            if name in ("rename", "replace"):
                argument = os.path.abspath(argument)
            if name != "open" or argument & os.O_CREAT:
                self.see(name, path_of(target, options.get("dir_fd")), argument)
            return real(target, *arguments, **options)

        return call

    def see(self, name, path, argument):
        if self.below in path:
            number = next(self.numbers)
            if number == self.at or (self.always and number > self.at):
                self.act(name, path, argument)


def path_of(target, folder=None):
    """The absolute path of a handle, or of a path relative to an open folder."""
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")
    if folder is not None:
        return os.path.join(path_of(folder), target)
    return os.path.abspath(target)


def kill(name, path, argument):
    """Of a write, half comes first."""
    if name == "write":
        with UNSEEN_OPEN(path, "ab") as file:
            file.write(argument[: len(argument) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def pause(name, path, argument):
    os.kill(os.getpid(), signal.SIGSTOP)


def full(name, path, argument):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def send(owner, name, call, *numbers):
    """These signals, at the beginning of the n-th call of a function."""
    real = getattr(owner, name)
    calls = count(1)

    def function(*arguments, **options):
        if next(calls) == call:
            for number in numbers:
                os.kill(os.getpid(), number)
        return real(*arguments, **options)

    setattr(owner, name, function)


def spoil(kind, call):
    """The n-th forward pass in training returns NaN, or raises an error."""
    real = Decoder.hidden
    calls = count(1)

    def hidden(model, *arguments, **options):
        x = real(model, *arguments, **options)
        if model.training and next(calls) == call:
            if kind == "bug":
                raise RuntimeError("a bug")
            return x * torch.nan
        return x

    Decoder.hidden = hidden


def operations(cwd, *overrides, below=None):
    """(name, path in cwd, argument) of each operation; of an fsync, what is in the file. The log has
    a large buffer, so that a line is one write: those of two threads must not mix."""
    log = cwd.with_suffix(".log")

    def note(name, path, argument):
        if name == "fsync" and os.path.isfile(path):
            with UNSEEN_OPEN(path, "rb") as file:
                argument = file.read()
        with UNSEEN_OPEN(log, "a", 100_000_000) as file:
            print((name, os.path.relpath(path), argument), file=file)

    output_of(cwd, *overrides, act=Shim(note, below=below, always=True))
    return [literal_eval(line) for line in log.read_text().splitlines()]


class Recorded(NamedTuple):
    before: Path  # a copy of the folder as it was
    log: list  # of operations


@cache
def recorded(kind):
    """A run that is new, or that was killed after its first checkpoint and resumes."""
    before = HOME / f"{kind}-before"
    before.mkdir()
    if kind == "resumed":  # the second checkpoint has waited for the first, and copies its model
        act = partial(send, Checkpointer, "copied", 3, signal.SIGKILL)
        output_of(before, act=act, code=-signal.SIGKILL)
    cwd = shutil.copytree(before, HOME / kind)
    return Recorded(before, operations(cwd, "resume=auto"))
