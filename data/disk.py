"""Disk: writes that survive a power failure, so that a file is complete or absent, and hashes of files."""

import errno
import hashlib
import json
import os
import shutil
import time
from contextlib import contextmanager, suppress
from stat import S_ISREG

import numpy as np

from configs.errors import DataError

O_BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows would write \r\n for \n
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(
    os, "O_NONBLOCK", 0
)  # follow no link, wait for no pipe
CHUNK_BYTES = 1 << 24  # hashed and written at a time
MAX_JSON_BYTES = 1 << 24
MIN_CACHED_BYTES = 1 << 24  # of a file whose hash is kept
MTIME_GRACE = 2.0  # seconds after which another write would change a file's times
FULL = "; free some space, or choose another disk with data.cache=FOLDER"
HINTS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), FULL)
HINTS |= dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS), "; choose a writable data.cache=FOLDER"
)


def write_synced(path, chunks):
    """Write a new file, fsync it, and return its {bytes, sha256}."""
    if isinstance(chunks, str):
        path.unlink(missing_ok=True)
        chunks = [chunks.encode()]
    digest, size = hashlib.sha256(), 0
    with open_synced(path, os.O_CREAT | os.O_EXCL) as handle:
        for chunk in chunks:
            for written in write_all(handle, chunk):
                digest.update(written)
                size += len(written)
    return {"bytes": size, "sha256": digest.hexdigest()}


def write_parts(path, size, parts):
    """Write each (offset, bytes) into a file that other processes write as well, fsync it, and return the sum
    of the bytes: in the file it is lower if some have got lost, for then there are zeros."""
    total = 0
    with open_synced(path, os.O_CREAT | PLAIN) as handle:
        os.ftruncate(
            handle, size
        )  # first: where a write extends a file, NFS may put zeros before it
        for offset, part in parts:
            os.lseek(handle, offset, os.SEEK_SET)
            total += sum(byte_sum(written) for written in write_all(handle, part))
    return total


def read_back(path):
    """{bytes, sha256} of a file, and the sum of its bytes."""
    digest, size, total = hashlib.sha256(), 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size, total = size + len(chunk), total + byte_sum(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}, total


def byte_sum(data):
    return int(np.frombuffer(data, np.uint8).sum())


@contextmanager
def open_synced(path, flags):
    """A handle to write a file, which is fsynced at the end."""
    handle = os.open(path, os.O_WRONLY | O_BINARY | flags, 0o666)
    try:
        yield handle
        os.fsync(handle)
    except OSError as error:  # which does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def write_all(handle, data):
    """Yield the data as it is written."""
    left = memoryview(data)
    while left:
        done = os.write(handle, left[:CHUNK_BYTES])
        yield left[:done]
        left = left[done:]


def open_plain(path, mode=0o666, flags=0):
    """A handle to read and write a regular file, which is created if it is missing."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | O_BINARY | PLAIN | flags, mode)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def sync_file(path):
    """fsync a file that has been written, and return its sha256."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder):
    """fsync the entries of a folder, so that new and renamed files in it survive."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folder
        return
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
    sync_folder(path.parent)


def atomic_rmtree(folder):
    """Rename, then delete, so that a half-deleted folder is never mistaken for a complete one."""
    trash = folder.with_suffix(".trash")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(folder, trash)
    sync_folder(trash.parent)
    shutil.rmtree(trash)


def read_json_or_none(path):
    """What a small JSON file holds, or None if it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size < MAX_JSON_BYTES:  # reading a pipe would block
            return json.loads(path.read_bytes())
    return None


def filesize(n):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.{1 if unit == 'GiB' else 0}f} {unit}"
    return f"{n} bytes"


@contextmanager
def disk_errors(action, path=None):
    """Turn an OSError into a DataError that names the file, or `path`, and a way out."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        name = f" {error.filename or path}" if error.filename or path else ""
        hint = "" if action == "cannot read" else HINTS.get(error.errno, "")
        raise DataError(f"{action}{name}: {error.strerror.lower()}{hint}") from None


class HashCache:
    """sha256 of files; those of large files are kept in a JSON file, by name, size and times."""

    def __init__(self, path):
        self.path, known = path, read_json_or_none(path)
        self.known = known if isinstance(known, dict) else {}

    def get(self, path):
        stat, name = os.stat(path), os.path.abspath(path)
        known = self.known.get(name)
        if (
            stat.st_size >= MIN_CACHED_BYTES
            and isinstance(known, list)
            and known[:-1] == stat_key(stat)
        ):
            return known[-1]
        sha256 = digest(path)
        if (
            stat.st_size >= MIN_CACHED_BYTES
            and time.time() - max(stat.st_mtime, stat.st_ctime) > MTIME_GRACE
        ):
            self.put(name, [*stat_key(stat), sha256])
        return sha256

    def put(self, name, value):
        self.known[name] = value
        draft = self.path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # it only saves time
            draft.write_text(json.dumps(self.known))
            draft.replace(self.path)


def stat_key(stat):
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def digest(path):
    with disk_errors("cannot read", path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
