"""Shim: wraps the disk operations of a run, counts them, and acts at one of them."""

import errno
import json
import os
import signal
import threading

from tests.faults.harness import train

NAMED = ("mkdir", "rename", "replace", "unlink", "rmdir")
HANDLES = ("write", "pwrite", "fsync", "ftruncate")


class Shim:
    """act(name, real, args) at operation number `at` on paths below `below`, or from then on always."""

    def __init__(self, at, act, below="runs/", always=False):
        self.at, self.act, self.below, self.always = at, act, below, always
        self.count, self.paths, self.lock = 0, {}, threading.Lock()

    def __call__(self):
        real_open = os.open

        def opened(path, flags, mode=0o777, **rest):
            absolute = os.path.abspath(os.fspath(path)) if "dir_fd" not in rest else str(path)
            if flags & os.O_CREAT:
                self.operation("open", lambda *_: None, (absolute,))
            handle = real_open(path, flags, mode, **rest)
            self.paths[handle] = absolute
            return handle

        os.open = opened
        for name in (*NAMED, *HANDLES):
            setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name, real):
        def call(*args, **rest):
            if name in HANDLES:
                path = self.paths.get(args[0]) or os.readlink(f"/proc/self/fd/{args[0]}")
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
    """Log every operation, with the bytes written."""

    def act(name, real, args):
        data = bytes(args[2]).hex() if name in ("write", "pwrite") else ""
        more = [os.path.abspath(args[2])] if name in ("rename", "replace") else []
        with open(path, "a") as file:
            file.write(json.dumps([name, args[0], *more, data]) + "\n")

    return act


def operations(cwd, overrides):
    """The disk operations of a run: [name, path, ...]."""
    code, output = train(cwd, overrides, Shim(1, log(cwd / "log.jsonl"), always=True))
    assert code == 0, output
    return [json.loads(line) for line in (cwd / "log.jsonl").read_text().splitlines()]
