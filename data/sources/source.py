"""Source: documents, always in the same order; the usual one is the standard library."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from configs.errors import DataError
from configs.registry import Ratio
from data.readers import read_chunks, stdlib_files


class Document(NamedTuple):
    """A text, a pair, or a conversation, in `texts`; without these, the content of the file
    `name`."""

    name: Path | str  # for messages; without texts, the path that is read
    # read more than once, so a source gives no iterator; an error if they cannot be read
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
    """Base of all sources of documents. They change only when their files do;
    those without files never do."""

    input_kind = "text"
    on_error = "error"
    cache: str
    val_fraction: Ratio
    document_mask: bool = field(default=False, kw_only=True)

    def files(self) -> list[Path]:
        return []

    def validation_sources(self) -> "list[Source]":
        """The source of the validation documents, if they have files of their own."""
        return []

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def version(self) -> list[tuple[str, int, int]]:
        """The (name, size, time) of each file."""
        files = []
        for part in (self, *self.validation_sources()):
            for path in part.files():
                stat = path.stat()
                files.append((os.path.abspath(path), stat.st_size, stat.st_mtime_ns))
        return files


class Python(Source):
    """The running Python's standard library; each file is a document."""

    def files(self) -> list[Path]:
        return stdlib_files()
