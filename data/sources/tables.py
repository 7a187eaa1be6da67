"""Tables (jsonl, json, csv, tsv, parquet), of whose rows fields are read: a text, a pair or a
conversation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from configs.errors import DataError
from data.chat import read_turns
from data.sources import Document, Files
from data.tables import Rows, attempt, table_rows, texts_of


class Table(Files):
    """Each row is a document."""

    hint = ""  # what to set if a row lacks a field

    def fields(self) -> list[str]:
        raise NotImplementedError

    def texts(self, place: str, row: Any) -> list[str]:
        return texts_of(place, row, self.fields(), self.hint)

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            rows = table_rows(path, self.fields(), self.encoding)
            yield from row_documents(rows, self.texts)


def row_documents(rows: Rows, read: Callable[[str, Any], list[str]]) -> Iterator[Document]:
    for place, row in rows:
        if not isinstance(row, DataError):
            row = attempt(read, place, row)
        yield Document(place, row)


@dataclass
class TextTable(Table):
    hint = "set data.field"
    field: str

    def fields(self) -> list[str]:
        return [self.field]


@dataclass
class PairTable(Table):
    input_kind = "pairs"
    hint = "set data.source and data.target"
    source: str
    target: str

    def fields(self) -> list[str]:
        return [self.source, self.target]


class Chat(Table):
    """Conversations, as roles and contents in turn: the messages of a row, or an instruction and
    its answer."""

    input_kind = "chat"

    def fields(self) -> list[str]:
        return ["messages"]

    def texts(self, place: str, row: Any) -> list[str]:
        turns = read_turns(place, row)
        if "assistant" not in turns[::2]:
            raise DataError(f"{place}: the assistant has no message to learn from")
        return turns
