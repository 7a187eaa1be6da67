"""Disk: what is written outlasts a loss of power: a file or folder is there whole, or not at all."""

import errno
import hashlib
import os
import shutil
from contextlib import contextmanager

from configs.errors import DataError

PIECE = 1 << 24  # bytes that are hashed and written at a time


def write_synced(path, chunks):
    """A new file of these bytes, on the disk before this returns; {bytes, sha256} of what it holds."""
    handle, digest, size = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), hashlib.sha256(), 0
    try:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                done = write_all(handle, left[:PIECE], path)
                digest.update(left[:done])
                left, size = left[done:], size + done
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"bytes": size, "sha256": digest.hexdigest()}


def write_all(handle, piece, path):
    """How much of it was; what goes wrong names the file, which the system does not."""
    try:
        return os.write(handle, piece)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync(path):
    """What a file holds, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path, text):
    """The whole file at once, whatever stood there before."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    write_synced(draft, [text.encode()])
    os.replace(draft, path)
    sync(path.parent)


def atomic_rmtree(folder):
    """Gone by its name at once, then by and by: a half-deleted folder passes for nothing."""
    trash = folder.with_suffix(".trash")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(folder, trash)
    shutil.rmtree(trash)


def filesize(n):
    """A size as people read it."""
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= one:
            return f"{n / one:.{1 if unit == 'GiB' else 0}f} {unit}"
    return f"{n} bytes"


@contextmanager
def disk_errors(doing):
    """What the disk refuses, as a DataError."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        hint = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "; free some space, or choose another disk with data.cache=FOLDER"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "; choose a writable folder with data.cache=FOLDER"
        where = f" {error.filename}" if error.filename else ""
        raise DataError(f"{doing}{where}: {error.strerror.lower()}{hint}") from None
