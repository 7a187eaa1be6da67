"""Shim: wraps the disk operations of a run, counts them, and acts at one of them."""

import errno
import json
import os
import signal
import threading
from pathlib import Path

from tests.faults.harness import train

NAMED = ("mkdir", "rename", "replace", "unlink", "rmdir")
HANDLES = ("write", "pwrite", "fsync", "ftruncate")


class Shim:
    """act(name, real, args) at operation number `at` on paths below `below`, or from then on always."""

    def __init__(self, at, act, below="runs/", always=False):
        self.at, self.act, self.below, self.always = at, act, below, always
        self.count, self.lock = 0, threading.Lock()

    def __call__(self):
        real_open = os.open

        def opened(path, flags, mode=0o777, **rest):
            absolute = os.path.abspath(os.fspath(path)) if "dir_fd" not in rest else str(path)
            if flags & os.O_CREAT:
                self.operation("open", lambda *_: None, (absolute,))
            return real_open(path, flags, mode, **rest)

        os.open = opened
        for name in (*NAMED, *HANDLES):
            setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, real):
        def call(*args, **rest):
            if name in HANDLES:
                path = os.readlink(f"/proc/self/fd/{args[0]}")
            elif rest.get("dir_fd") is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{rest['dir_fd']}"), str(args[0]))
            else:
                path = os.path.abspath(os.fspath(args[0]))
            self.operation(name, real, (path, *args))
            return real(*args, **rest)

        return call

    def operation(self, name, real, args):
        if self.below not in args[0]:
            return
        with self.lock:
            self.count += 1
            now = self.count >= self.at if self.always else self.count == self.at
        if now:
            self.act(name, real, args)


def kill(name, real, args):
    """Of a write, half is written first."""
    if name == "write":
        real(args[1], bytes(args[2])[: len(args[2]) // 2])
    if name == "pwrite":
        real(args[1], bytes(args[2])[: len(args[2]) // 2], args[3])
    os.kill(os.getpid(), signal.SIGKILL)


def full(name, real, args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[0])


def log(path):
    """Log every operation: [name, path, bytes written, all bytes of a file that is synced, or new name]."""
    file, write = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.write

    def act(name, real, args):
        entry = [name, args[0]]
        if name == "write":
            entry.append(bytes(args[2]).hex())
        elif name == "ftruncate":
            entry.append(args[2])
        elif name == "fsync" and os.path.isfile(args[0]):
            entry.append(Path(args[0]).read_bytes().hex())
        elif name in ("rename", "replace"):
            entry.append(os.path.abspath(args[2]))
        write(file, json.dumps(entry).encode() + b"\n")

    return act


def operations(cwd, overrides, below="runs/"):
    """The disk operations of a run."""
    code, output = train(cwd, overrides, Shim(1, log(cwd / "log.jsonl"), below, always=True))
    assert code == 0, output
    return read_log(cwd / "log.jsonl")


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
