"""Sources of text, always in the same order. The standard library is here; others have files of their
own."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from configs.errors import DataError
from configs.registry import Ratio, Registry
from data.readers import read_chunks, stdlib_files


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
    cache: str
    val_fraction: Ratio

    def files(self) -> list[Path]:
        return []

    def held_out(self) -> "list[Source]":
        """The source of the validation documents, if they have files of their own."""
        return []

    def members(self) -> "dict[str, Source]":
        """The sources of a mix, by name."""
        return {}

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def most_tokens(self) -> int:
        """Of the training split."""
        return sys.maxsize

    def version(self) -> list[tuple[str, int, int]]:
        """(name, size, time) of each file."""
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


SOURCES: Registry[type[Source]] = Registry(
    python=Python,
    text="data.sources.text:Text",
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
