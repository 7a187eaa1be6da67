"""Sources of text, always in the same order: the standard library, and files of text. Those of tables,
pairs and conversations have files of their own."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from configs.errors import DataError, errors_as
from configs.registry import Positive, Ratio, Registry
from data.readers import TABLES, find_files, read_chunks, read_lines, stdlib_files, suffix_of


class Document(NamedTuple):
    """A text, a source and its target, or a conversation; without texts, what the file `name`
    holds."""

    name: Path | str  # for messages; without texts, the path that is read
    # no iterator, for they are read more than once; an error, if they cannot be read
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
    """Documents, which change only when files do, if there are any."""

    input_kind = "text"
    on_error = "error"
    members: ClassVar[dict[str, Any]] = {}  # the sources of a mix, by name
    cache: str
    val_fraction: Ratio
    weight: Positive = field(default=1, kw_only=True)  # in a mix

    def files(self) -> list[Path]:
        return []

    def held_out(self) -> "list[Source]":
        """The source of the validation documents, if they have files of their own."""
        return []

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def most_tokens(self) -> int:
        """Of the training split."""
        return sys.maxsize

    def version(self) -> list[tuple[str, int, int]]:
        """(name, size, time) of each file."""
        paths = chain.from_iterable(part.files() for part in (self, *self.held_out()))
        stats = [(os.path.abspath(path), path.stat()) for path in paths]
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


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
        hint = "no text encoding of Python; try utf-8, latin-1, cp1252 or utf-16"
        with errors_as(ValueError, f"encoding is {self.encoding!r:.60}, {hint}"):
            "".encode(self.encoding)

    def files(self) -> list[Path]:
        found = find_files(self.path, self.cache)
        for part in self.held_out():
            held_out = set(map(Path.resolve, part.files()))
            # if all are held out, they are for both
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
        if tables := [path for path in found if suffix_of(path) in TABLES]:
            raise DataError(
                f"data.path={self.path} has {len(tables)} tables, such as {tables[0]}; data=table reads "
                "one of their fields, data=chat conversations, and a glob such as "
                "'folder/**/*.txt' selects other files"
            )
        return found

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            if self.split_on == "file":
                yield Document(path, None, self.encoding)
                continue
            for number, line in enumerate(read_lines(path, self.encoding), 1):
                yield Document(f"{path}:{number}", [line])


SOURCES: Registry[type[Source]] = Registry(
    python=Python,
    text=Text,
    table="data.tables:TextTable",
    hub="data.sources.hub:Hub",
    shakespeare="data.sources.hub:Shakespeare",
    pairs="data.tables:PairTable",
    chat="data.tables:Chat",
    parallel="data.sources.pairs:ParallelText",
    docstrings="data.sources.pairs:Docstrings",
    synthetic="data.sources.pairs:Synthetic",
    mix="data.mix:Mix",
)
