"""Sources that are downloaded: datasets of the Hugging Face Hub, and Tiny Shakespeare."""

import os
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from configs.cli import expand_user
from configs.errors import DataError, errors_as, first_line
from configs.registry import Count
from data.disk import atomic_write
from data.sources.files import find_files
from data.sources.source import Document, Source
from data.sources.tables import numbered, row_documents, text_of

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)


@dataclass
class Hub(Source):
    """One field of a dataset on the Hugging Face Hub, or in a folder; `streaming` keeps no copy."""

    id: str
    name: str | None
    split: str
    field: str
    revision: str | None
    streaming: bool
    max_tokens: Count | None
    on_error: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        self.folder = expand_user(self.id)

    def files(self) -> list[Path]:
        return find_files(self.id, self.cache) if self.folder.is_dir() else []

    def version(self) -> list[tuple[str, int, int]]:
        return super().version() or [(self.commit, 0, 0)]

    @cached_property
    def commit(self) -> str:
        """The commit of a dataset on the Hub; offline, the last one that is known."""
        import huggingface_hub

        known = expand_user(self.cache) / f"{self.id}@{self.revision}.commit".replace("/", "--")
        try:
            commit = str(huggingface_hub.dataset_info(self.id, revision=self.revision).sha)
        except Exception as error:  # from the network, through many libraries
            if known.exists():
                return known.read_text()
            place = f"{self.id} from the Hugging Face Hub ({first_line(error)})"
            hint = "check its name and the network, or give the folder of a copy: data.id=FOLDER"
            raise DataError(f"cannot get {place}; {hint}") from None
        with suppress(OSError):  # a cache that has the tokens need not be writable
            atomic_write(known, commit)
        return commit

    def documents(self) -> Iterator[Document]:
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        is_local = self.folder.is_dir()
        with errors_as(DataError, f"cannot read {self.id}"):
            table = datasets.load_dataset(
                self.folder.as_posix(),
                self.name,
                split=self.split,
                revision=None if is_local else self.commit,
                streaming=self.streaming or is_local,  # a cached copy of a folder could be stale
            )
            column = self.field.partition(".")[0]
            if column in (table.column_names or ()):
                table = table.select_columns([column])  # do not decode images and the like
            yield from row_documents(
                numbered(self.id, table), lambda place, row: [text_of(place, row, self.field)]
            )


class Shakespeare(Source):
    """Tiny Shakespeare, the text of many small benchmarks; downloaded once."""

    def files(self) -> list[Path]:
        path = expand_user(self.cache) / "tinyshakespeare.txt"
        if path.exists():
            return [path]
        draft = path.with_suffix(f".{os.getpid()}")  # other processes may download it, too
        hint = f"put a copy of that file at {path}"
        with errors_as(DataError, f"cannot download {SHAKESPEARE}; {hint}"):
            urllib.request.urlretrieve(SHAKESPEARE, draft)
        draft.replace(path)
        return [path]
