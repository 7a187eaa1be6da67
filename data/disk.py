"""Disk: files that are complete or absent after a power cut, and errors as sentences."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import DataError


def write_synced(path: Path, text: str) -> None:
    """Write a text file, and return once it is on the disk."""
    path.write_text(text, encoding="utf-8", newline="\n")
    sync_file(path)


def sync_file(path: Path) -> str:
    """fsync a file that has been written, and return its sha256."""
    with open(path, "r+b") as file:  # Windows syncs no file that is only read
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """fsync the entries of a folder, so that new and renamed files in it survive."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folder
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path: Path, text: str) -> None:
    """Create or replace a text file."""
    draft = path.with_name(f"{path.name}.draft")
    write_synced(draft, text)
    os.replace(draft, path)
    sync_folder(path.parent)


def filesize(n: float) -> str:
    if n >= 2**30:
        return f"{n / 2**30:.1f} GiB"
    if n >= 2**20:
        return f"{n / 2**20:.0f} MiB"
    if n >= 2**10:
        return f"{n / 2**10:.0f} KiB"
    return f"{n:.0f} bytes"


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a DataError that names the file, if it is known, or `path`."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # not an error of the disk
            raise
        hint = "; free some space or choose another folder with data.cache=FOLDER"
        if action == "cannot read":
            hint = ""
        place = error.filename or path
        raise DataError(f"{action} {place}: {error.strerror.lower()}{hint}") from None


# ---- for training/ and model/checkpoint/, until they are rebuilt

import errno  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import time  # noqa: E402, F401
from contextlib import suppress  # noqa: E402
from stat import S_ISREG  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

O_BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows would write \r\n for \n
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
CHUNK_BYTES = 1 << 24
MAX_JSON_BYTES = 1 << 24
write_text_synced = write_synced


def write_synced(path: Path, chunks: Any) -> Any:  # type: ignore[no-redef]
    if isinstance(chunks, str):
        return write_text_synced(path, chunks)
    digest, size = hashlib.sha256(), 0
    with open_synced(path, os.O_CREAT | os.O_EXCL) as handle:
        for chunk in chunks:
            for written in write_all(handle, chunk):
                digest.update(written)
                size += len(written)
    return {"bytes": size, "sha256": digest.hexdigest()}


def write_parts(path: Path, size: int, parts: Any) -> int:
    total = 0
    with open_synced(path, os.O_CREAT | PLAIN) as handle:
        os.ftruncate(handle, size)
        for offset, part in parts:
            os.lseek(handle, offset, os.SEEK_SET)
            total += sum(byte_sum(written) for written in write_all(handle, part))
    return total


def read_back(path: Path) -> Any:
    digest, size, total = hashlib.sha256(), 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size, total = size + len(chunk), total + byte_sum(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}, total


def byte_sum(data: Any) -> int:
    return int(np.frombuffer(data, np.uint8).sum())


@contextmanager
def open_synced(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, os.O_WRONLY | O_BINARY | flags, 0o666)
    try:
        yield handle
        os.fsync(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


def write_all(handle: int, data: Any) -> Iterator[memoryview]:
    left = memoryview(data)
    while left:
        done = os.write(handle, left[:CHUNK_BYTES])
        yield left[:done]
        left = left[done:]


def open_plain(path: Path, mode: int = 0o666, flags: int = 0) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | O_BINARY | PLAIN | flags, mode)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def atomic_rmtree(folder: Path) -> None:
    trash = folder.with_suffix(".trash")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(folder, trash)
    sync_folder(trash.parent)
    shutil.rmtree(trash)


def read_json_or_none(path: Path) -> Any:
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size < MAX_JSON_BYTES:
            return json.loads(path.read_bytes())
    return None
