"""Disk: writes that survive a power failure; a file or folder is complete or absent."""

import errno
import hashlib
import os
import shutil
from contextlib import contextmanager

from configs.errors import DataError

CHUNK_BYTES = 1 << 24  # hashed and written at a time
FULL = "; free some space, or choose another disk with data.cache=FOLDER"
HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), FULL)
HINTS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "; choose a writable data.cache=FOLDER")


def write_synced(path, chunks):
    """Write a new file, fsync it, and return its {bytes, sha256}."""
    handle, digest, size = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), hashlib.sha256(), 0
    try:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                done = os.write(handle, left[:CHUNK_BYTES])
                digest.update(left[:done])
                left, size = left[done:], size + done
        os.fsync(handle)
    except OSError as error:  # which does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync(path):
    """fsync a file, or the entries of a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path, text):
    """Create or replace a text file."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    write_synced(draft, [text.encode()])
    os.replace(draft, path)
    sync(path.parent)


def atomic_rmtree(folder):
    """Rename, then delete, so that a half-deleted folder is never mistaken for a complete one."""
    trash = folder.with_suffix(".trash")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(folder, trash)
    shutil.rmtree(trash)


def filesize(n):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.{1 if unit == 'GiB' else 0}f} {unit}"
    return f"{n} bytes"


@contextmanager
def disk_errors(action):
    """Turn an OSError into a DataError that names the file and a way out."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        name = f" {error.filename}" if error.filename else ""
        hint = HINTS.get(error.errno, "")
        raise DataError(f"{action}{name}: {error.strerror.lower()}{hint}") from None
