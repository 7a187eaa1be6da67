"""Files of a source: which ones it reads, and the hashes that tell whether they have changed."""

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

# parts of the standard library that teach little: tests, tools, copies of other packages, character tables
NOT_LIBRARY = {"test", "tests", "idle_test", "idlelib", "turtledemo", "ensurepip", "lib2to3", "encodings"}
NOT_LIBRARY |= {"site-packages", "dist-packages", "__pycache__"}
LARGE = 1 << 24  # bytes
MTIME_GRACE = 2.0  # seconds after which another write would change a file's times


def walk_files(folder, exclude=()):
    """All files below a folder, except hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in exclude]
        yield from (os.path.join(root, name) for name in files if not name.startswith("."))


def stdlib_files():
    """The source files of the running Python's standard library."""
    root = sysconfig.get_path("stdlib")
    files = [Path(name) for name in walk_files(root, exclude=NOT_LIBRARY) if name.endswith(".py")]
    if not files:
        raise DataError(f"this Python has no source files in {root}; use data=text data.path=FOLDER")
    return sorted(files, key=Path.as_posix)


def resolve_paths(path, cache):
    """The files that a name, folder or glob stands for, except the cache; hidden ones only by name."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a glob")
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    names = walk_files(place) if place.is_dir() else glob.glob(str(place), recursive=True)
    ours = os.path.join(os.path.abspath(os.path.expanduser(cache or os.devnull)), "")
    files = [name for name in names if os.path.isfile(name) and not os.path.abspath(name).startswith(ours)]
    if files:
        return [Path(name) for name in sorted(files)]
    if place.is_dir():
        raise DataError(f"there is no text in the folder {path}: it holds no files")
    what = "file that matches" if glob.has_magic(path) else "file or folder"
    raise DataError(f"there is no {what} {path} (in {Path.cwd()})")


class FileSource:
    """A source that is determined by the contents and names of its files, if it has any."""

    input_kind, max_tokens = "text", None

    def digest(self, hashes):
        files = self.files()
        root = os.path.commonpath([path.parent for path in files])
        with disk_errors("cannot read"):
            known = [(os.path.relpath(path, root), hashes.get(path)) for path in files]
        return hashlib.sha256(repr(known).encode("utf-8", "surrogateescape")).hexdigest()

    def stat_key(self):
        """Changes when a file does."""
        return [stat_key(os.stat(path)) for path in self.files()]

    def n_bytes(self):
        return sum(path.stat().st_size for path in self.files()) or None


class HashCache:
    """sha256 of files; those of large files are kept in a JSON file, by name, size and times."""

    def __init__(self, path):
        self.path = path
        try:
            self.known = json.loads(path.read_text())
        except (OSError, ValueError):
            self.known = {}

    def get(self, path):
        stat, name = os.stat(path), os.path.abspath(path)
        known = self.known.get(name)
        if stat.st_size >= LARGE and isinstance(known, list) and known[:-1] == stat_key(stat):
            return known[-1]
        sha256 = digest(path)
        if stat.st_size >= LARGE and time.time() - max(stat.st_mtime, stat.st_ctime) > MTIME_GRACE:
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
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
