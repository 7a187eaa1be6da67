"""Files: which of them a source reads, and what is known of them before they are read."""

import glob
import hashlib
import json
import os
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

from configs.errors import DataError
from data.disk import disk_errors

# no part of what one learns Python from: tests, tools with copies of other files, tables of characters
NOT_LIBRARY = {"test", "tests", "idle_test", "idlelib", "turtledemo", "ensurepip", "lib2to3", "encodings"}
NOT_LIBRARY |= {"site-packages", "dist-packages", "__pycache__"}


def walk_files(folder, without=()):
    """All files below a folder but the hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        yield from (os.path.join(root, name) for name in files if not name.startswith("."))


def stdlib_files():
    """The source files of the running Python's standard library."""
    root = sysconfig.get_path("stdlib")
    files = [Path(name) for name in walk_files(root, without=NOT_LIBRARY) if name.endswith(".py")]
    if not files:
        raise DataError(f"this Python has no source files in {root}; use data=text data.path=FOLDER")
    return sorted(files, key=Path.as_posix)


def resolve_paths(path, cache):
    """What a file, a folder or a pattern stands for, without our own cache; hidden files only where they are
    named."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a pattern")
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    names = walk_files(place) if place.is_dir() else glob.glob(str(place), recursive=True)
    own = os.path.join(os.path.abspath(os.path.expanduser(cache or os.devnull)), "")
    files = [name for name in names if os.path.isfile(name) and not os.path.abspath(name).startswith(own)]
    if files:
        return [Path(name) for name in sorted(files)]
    if place.is_dir():
        raise DataError(f"there is no text in the folder {path}: it holds no files")
    what = "file that matches" if glob.has_magic(path) else "file or folder"
    raise DataError(f"there is no {what} {path} (looked from {Path.cwd()})")


class FileSource:
    """Files: what they hold, and how they are called, is all there is to know about them."""

    input_kind, max_tokens = "text", None

    def digest(self, fingerprints):
        files = self.files()
        root = os.path.commonpath([path.parent for path in files])
        with disk_errors("cannot read"):
            known = [(os.path.relpath(path, root), fingerprints.of(path)) for path in files]
        return hashlib.sha256(repr(known).encode("utf-8", "surrogateescape")).hexdigest()

    def stamp(self):
        """What changes when a file does, without reading it."""
        stats = [os.stat(path) for path in self.files()]
        return [(s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for s in stats]

    def n_bytes(self):
        return sum(path.stat().st_size for path in self.files())


LARGE = 1 << 24  # bytes
SETTLED = 2.0  # seconds after which a later change would show in a file's times


class HashCache:
    """The digests of files; those of large ones are noted in a file of their own."""

    def __init__(self, notes):
        self.notes = notes
        try:
            self.known = json.loads(notes.read_text())
        except (OSError, ValueError):
            self.known = {}

    def of(self, path):
        stat = os.stat(path)
        if stat.st_size < LARGE:
            return digest(path)
        name = os.path.abspath(path)
        now = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = self.known.get(name)
        if isinstance(known, list) and known[:-1] == now:
            return known[-1]
        found = digest(path)
        if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED:
            self.note(name, [*now, found])
        return found

    def note(self, name, row):
        self.known[name] = row
        draft = self.notes.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # a note saves time, and nothing hangs on it
            draft.write_text(json.dumps(self.known))
            draft.replace(self.notes)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
