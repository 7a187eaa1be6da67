"""Files as sources, found by their names: plain text, and the base class of tables."""

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from configs.cli import expand_user
from configs.errors import DataError
from data.readers import TABLES, read_lines, suffix_of, walk_files
from data.sources.source import Document, Source


def find_files(path: str | list[str], cache: str) -> list[Path]:
    """The files that a name, a folder, a glob or a list of these stands for, except those of the
    cache; hidden files only by name."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a glob")
    if isinstance(path, list):
        return list(dict.fromkeys(file for name in path for file in find_files(str(name), cache)))

    place = str(expand_user(path))
    if os.path.isfile(place):
        return [Path(place)]
    found = walk_files(place) if os.path.isdir(place) else glob.iglob(place, recursive=True)
    ours = os.path.join(os.path.abspath(expand_user(cache)), "")
    files = [
        Path(name)
        for name in sorted(found)
        if os.path.isfile(name) and not os.path.abspath(name).startswith(ours)
    ]
    if not files:
        raise DataError(f"there is no file at {path} (in {Path.cwd()})")
    return files


@dataclass(kw_only=True)
class Files(Source):
    """Files, folders (recursively) or globs; those of val_path are all for validation."""

    path: str | list[str]
    val_path: str | list[str] | None = None
    encoding: str = "utf-8"
    on_error: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding)
        except LookupError:
            hint = "not a text encoding of Python; try utf-8, latin-1, cp1252 or utf-16"
            raise ValueError(f"encoding is {self.encoding!r:.60}, {hint}") from None

    def files(self) -> list[Path]:
        found = find_files(self.path, self.cache)
        for part in self.validation_sources():
            held_out = set(map(Path.resolve, part.files()))
            # if all are held out, they are for both splits
            found = [path for path in found if path.resolve() not in held_out] or found
        return found

    def validation_sources(self) -> list[Source]:
        return [replace(self, path=self.val_path, val_path=None)] if self.val_path else []


@dataclass
class Text(Files):
    """Plain text."""

    split_on: Literal["file", "line"]

    def files(self) -> list[Path]:
        found = super().files()
        tables = [path for path in found if suffix_of(path) in TABLES]
        if tables:
            hint = "data=table reads one of their fields, data=chat conversations"
            others = "a glob such as 'folder/**/*.txt' selects other files"
            count = f"tables ({len(tables)}), such as {tables[0]}"
            raise DataError(f"data.path={self.path} has {count}; {hint}, and {others}")
        return found

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            if self.split_on == "file":
                yield Document(path, None, self.encoding)
                continue
            try:
                for number, line in enumerate(read_lines(path, self.encoding), 1):
                    yield Document(f"{path}:{number}", [line])
            except DataError as error:  # the rest of a damaged file
                yield Document(path, error)
