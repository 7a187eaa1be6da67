"""Shim: sees the disk operations of a run that pass through Python, and acts at one of them.

What safetensors writes passes by it, and is seen only when it is synced.
"""

import builtins
import errno
import io
import json
import os
import signal
import threading

from tests.faults.harness import run
from training.checkpointer import Checkpointer

NAMES = ("mkdir", "rename", "replace", "unlink", "rmdir", "truncate")
NAMES += ("write", "fsync", "ftruncate")  # these take a handle
REAL_OPEN = io.open


class Shim:
    """Once installed, act(name, path, argument) at operation number `at` below the path `below`, or
    from then on always. The argument: what is written, a size, a new path, or whether an open
    file is emptied."""

    def __init__(self, act, at=1, below="/runs/", always=False):
        self.act = act
        self.at = at
        self.below = below
        self.always = always
        self.count = 0
        self.lock = threading.Lock()

    def __call__(self):
        for name in NAMES:
            setattr(os, name, self.wrap(name, getattr(os, name)))
        os.open = self.wrap_os_open(os.open)
        io.open = builtins.open = self.open

    def happens(self, name, path, argument=None):
        if self.below not in path:
            return
        with self.lock:
            self.count += 1
            count = self.count
        if count == self.at or (self.always and count > self.at):
            self.act(name, path, argument)

    def wrap(self, name, real):
        def call(target, *arguments, **options):
            argument = arguments[0] if arguments else None
            if name in ("rename", "replace"):
                argument = os.path.abspath(argument)
            self.happens(name, path_of(target, options.get("dir_fd")), argument)
            return real(target, *arguments, **options)

        return call

    def wrap_os_open(self, real):
        def call(path, flags, mode=0o777, *, dir_fd=None):
            if flags & os.O_CREAT:
                self.happens("open", path_of(path, dir_fd), bool(flags & os.O_TRUNC))
            return real(path, flags, mode, dir_fd=dir_fd)

        return call

    def open(self, path, mode="r", buffering=-1, *text, **rest):
        """open(), whose writes are seen once they leave the buffer."""
        if mode[0] == "r" or isinstance(path, int) or self.below not in path_of(path):
            return REAL_OPEN(path, mode, buffering, *text, **rest)
        self.happens("open", path_of(path), mode[0] == "w")
        raw = WatchedFile(path, mode.replace("b", "").replace("t", ""))
        raw.shim = self
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, *text, **rest)


class WatchedFile(io.FileIO):
    shim: Shim

    def write(self, data):
        self.shim.happens("write", path_of(self.fileno()), bytes(data))
        return super().write(data)


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
        with REAL_OPEN(path, "ab") as file:
            file.write(bytes(argument)[: len(argument) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after_a_checkpoint():
    """Before the second: the same in each trial, whatever the threads do."""
    real = Checkpointer.save

    def save(saver, best=False):
        if saver.run.state.step == 2:
            saver.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        real(saver, best)

    Checkpointer.save = save


def full(name, path, argument):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def operations(cwd, *overrides, below="/runs/"):
    """[name, path, argument] of the disk operations of a run; of an fsync, what is in the file."""
    log = cwd.with_suffix(".log")

    def note(name, path, argument):
        if name == "fsync" and os.path.isfile(path):
            with REAL_OPEN(path, "rb") as file:
                argument = file.read()
        if isinstance(argument, bytes | memoryview):
            argument = bytes(argument).decode("latin-1")
        with REAL_OPEN(log, "a") as file:
            file.write(json.dumps([name, path, argument]) + "\n")

    code, output = run(cwd, *overrides, act=Shim(note, below=below, always=True))
    assert code == 0, output
    return [json.loads(line) for line in log.read_text().splitlines()]
