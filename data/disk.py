"""Disk: files and folders that are complete or absent after a power cut."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_synced(path: Path, text: str) -> None:
    """Write a text file, and return once it is on the disk."""
    path.write_text(text, encoding="utf-8", newline="\n")
    sync_and_hash(path)


def sync_and_hash(path: Path) -> str:
    """fsync a file that has been written, and return its sha256."""
    with open(path, "r+b") as file:  # Windows syncs no file that is only read
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """fsync the entries of a folder, so that new and renamed files in it survive a power cut."""
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


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A draft that becomes the folder at the end; if anything fails, none of it remains."""
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # left by a killed process
    draft.mkdir()  # not its parents: if the folder of a run was moved away, it must not reappear

    try:
        yield draft
        sync_folder(draft)
        os.rename(draft, folder)
        sync_folder(folder.parent)
    except OSError as error:
        if error.strerror and not error.filename:  # a full disk names no file
            error.filename = folder.parent
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
