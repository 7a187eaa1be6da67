"""Files: which of them a source reads, and what is known of them before they are read."""

import glob
import hashlib
import os
import sysconfig
from pathlib import Path

from data.errors import DataError, disk_errors

# no part of what one learns Python from: tests, tools with copies of other files, tables of characters
NOT_LIBRARY = {"test", "tests", "idle_test", "idlelib", "turtledemo", "ensurepip", "lib2to3", "encodings"}
NOT_LIBRARY |= {"site-packages", "dist-packages", "__pycache__"}


def library_files():
    """The source files of the running Python's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(root.rglob("*.py"), key=Path.as_posix)
    files = [path for path in files if not NOT_LIBRARY & set(path.relative_to(root).parts)]
    if not files:
        raise DataError(f"this Python has no source files in {root}; use data=text data.path=FOLDER")
    return files


def found_files(path, cache):
    """What a file, a folder or a pattern stands for, without our own cache; hidden files only where they are
    named."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a pattern")
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        files = [p for p in place.rglob("*") if p.is_file() and not hidden(p.relative_to(place))]
        if not files:
            raise DataError(f"there is no text in the folder {path}: it holds no files")
    else:
        files = [Path(name) for name in glob.glob(str(place), recursive=True) if os.path.isfile(name)]
        if not files:
            what = "file that matches" if glob.has_magic(path) else "file or folder"
            raise DataError(f"there is no {what} {path} (looked from {Path.cwd()})")
    own = Path(cache or os.devnull).expanduser().resolve()
    files = [file for file in files if own not in file.resolve().parents]
    return sorted(files, key=Path.as_posix)


def hidden(path):
    return any(part.startswith(".") for part in path.parts)


class FileSource:
    """Files: what they hold, and how they are called, is all there is to know about them."""

    reads, max_tokens = "text", None

    def digest(self, fingerprints):
        files = self.files()
        root = os.path.commonpath([path.parent for path in files])
        with disk_errors("cannot read"):
            known = [(os.path.relpath(path, root), fingerprints.of(path)) for path in files]
        return hashlib.sha256(repr(known).encode("utf-8", "surrogateescape")).hexdigest()

    def n_bytes(self):
        return sum(path.stat().st_size for path in self.files())
