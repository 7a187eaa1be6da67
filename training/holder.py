"""Holder: the one process that may write into a run's folder. Its lock ends with it, however it ends."""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from contextlib import contextmanager, nullcontext

from training.distributed import writes
from training.errors import BusyError, CheckpointError
from training.stored import read_json


@contextmanager
def held(folder):
    """The folder, for this process alone. The lock is opened once: closing any handle of it would free it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(handle, folder)
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        owner["start"] = time.strftime("%Y-%m-%d %H:%M:%S %z")
        (folder / "owner.json").write_text(json.dumps(owner), encoding="utf-8")
        yield
    finally:
        os.close(handle)


def claimed(config, home):
    """The folder of a run that goes on is held from before it is read."""
    goes_on = config.resume and not config.dry_run and writes() and (home / config.name).is_dir()
    return held(home / config.name) if goes_on else nullcontext()


def lock(handle, folder):
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            print(f"warning: {folder} cannot be locked ({error.strerror}); start no second run in it",
                  file=sys.stderr)  # fmt: skip
            return
        raise BusyError(f"{folder} is in use by {owner_of(folder)}; wait for it, or stop it") from None


def owner_of(folder):
    try:
        owner = read_json(folder / "owner.json")
        return f"process {owner['pid']} on {owner['host']}, started {owner['start']}"
    except (CheckpointError, KeyError, TypeError):
        return "another process"
