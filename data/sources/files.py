"""Sources of text, always in the same order: the standard library, and files; and the base class of
all sources."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from configs.errors import DataError
from configs.registry import Ratio
from data.readers import TABLES, find_files, read_chunks, read_lines, stdlib_files, suffix_of


class Document(NamedTuple):
    """A text, a source and its target, or a conversation; without texts, the content of the file
    `name`."""

    name: Path | str  # for messages; without texts, the path that is read
    # not an iterator, because they are read more than once; an error if they cannot be read
    texts: Iterable[str] | DataError | None = None
    encoding: str = "utf-8"

    def chunks(self) -> Iterator[str]:
        if isinstance(self.texts, DataError):
            raise self.texts
        if isinstance(self.texts, str):
            raise ValueError("Document(name, texts): texts is a str; expected a list of them")
        if self.texts is None:
            return read_chunks(Path(self.name), self.encoding)
        return iter(self.texts)


@dataclass
class Source:
    """Base of all sources of documents. They change only when their files do, else never."""

    input_kind = "text"
    on_error = "error"
    cache: str
    val_fraction: Ratio
    document_mask: bool = field(default=False, kw_only=True)

    def files(self) -> list[Path]:
        return []

    def held_out(self) -> "list[Source]":
        """The source of the validation documents, if they have files of their own."""
        return []

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def version(self) -> list[tuple[str, int, int]]:
        """The (name, size, time) of each file."""
        files = []
        for part in (self, *self.held_out()):
            for path in part.files():
                stat = path.stat()
                files.append((os.path.abspath(path), stat.st_size, stat.st_mtime_ns))
        return files


@dataclass
class Python(Source):
    """The running Python's standard library; each file is a document."""

    def files(self) -> list[Path]:
        return stdlib_files()


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
        for part in self.held_out():
            held_out = set(map(Path.resolve, part.files()))
            # if all are held out, they are for both splits
            found = [path for path in found if path.resolve() not in held_out] or found
        return found

    def held_out(self) -> list[Source]:
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
            for number, line in enumerate(read_lines(path, self.encoding), 1):
                yield Document(f"{path}:{number}", [line])
