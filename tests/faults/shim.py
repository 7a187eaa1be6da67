"""Shim: wraps the disk operations of a run, counts them, and acts at one of them."""

import errno
import json
import os
import signal
import threading

from tests.faults import harness

NAMED = ("mkdir", "rename", "replace", "unlink", "rmdir")
HANDLES = ("write", "pwrite", "fsync", "ftruncate")


class Shim:
    """act(name, real, args) at operation number `at` on paths below `below`, or from then on always."""

    def __init__(self, at, act, below="runs/", always=False):
        self.at, self.act, self.below, self.always = at, act, below, always
        self.count, self.paths, self.alone = 0, {}, threading.Lock()

    def __call__(self):
        real_open = os.open

        def opened(path, flags, mode=0o777, **rest):
            place = os.path.abspath(os.fspath(path)) if "dir_fd" not in rest else str(path)
            if flags & os.O_CREAT and self.watched(place):
                self.pass_by("open", lambda *_: None, (place,))
            handle = real_open(path, flags, mode, **rest)
            self.paths[handle] = place
            return handle

        os.open = opened
        for name in (*NAMED, *HANDLES):
            setattr(os, name, self.between(name, getattr(os, name)))

    def watched(self, path):
        return self.below in path

    def between(self, name, real):
        def call(*args, **rest):
            if name in HANDLES:
                path = self.paths.get(args[0]) or os.readlink(f"/proc/self/fd/{args[0]}")
            elif rest.get("dir_fd") is not None:
                path = os.path.join(os.readlink(f"/proc/self/fd/{rest['dir_fd']}"), str(args[0]))
            else:
                path = os.path.abspath(os.fspath(args[0]))
            if self.watched(path):
                self.pass_by(name, real, (path, *args))
            return real(*args, **rest)

        return call

    def pass_by(self, name, real, args):
        with self.alone:
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


def refuse(number):
    def act(name, real, args):
        raise OSError(number, os.strerror(number), args[0])

    return act


full = refuse(errno.ENOSPC)


def log(path):
    """Log every operation, with the bytes written."""

    def act(name, real, args):
        data = bytes(args[2]).hex() if name in ("write", "pwrite") else ""
        more = [os.path.abspath(args[2])] if name in ("rename", "replace") else []
        with open(path, "a") as file:
            file.write(json.dumps([name, args[0], *more, data]) + "\n")

    return act


def operations(room, overrides):
    """The disk operations of a run: [name, path, ...]."""
    code, output = harness.train(room, overrides, Shim(1, log(room / "log.jsonl"), always=True))
    assert code == 0, output
    return [json.loads(line) for line in (room / "log.jsonl").read_text().splitlines()]
