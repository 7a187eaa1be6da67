"""Tables (jsonl, json, csv, tsv, parquet), of whose rows fields are read: a text, a pair or a
conversation. What cannot be read is an error that names its place, and others may follow."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from configs.errors import DataError, errors_as
from data.chat import to_messages
from data.readers import open_text, read_chunks, read_lines, suffix_of
from data.sources import Document, Files

BATCH_ROWS = 64  # of a parquet file, whose row groups may not fit in memory
Rows = Iterator[tuple[str, Any]]  # (place, row, or a DataError)
CHAT_HINT = "conversations are read by data=chat"
FIELDS = ["role", "content"]
ROLES = ("system", "user", "assistant")
PAIRS = {"prompt": "completion", "instruction": "output"}
EXPECTED = (
    "expected a list of messages, prompt and completion, or instruction and output (and input)"
)
MESSAGE = "expected a role (system, user or assistant), a content that is not empty, and no more"


def numbered(name: object, rows: Iterable) -> Rows:
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def json_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    """Of JSON Lines or of a JSON list. The datasets library would parse dates in texts."""
    first = next(filter(str.strip, read_lines(path, encoding)), "")
    if first.lstrip().startswith("["):
        text = "".join(read_chunks(path, encoding))
        yield from numbered(path, parse_json(path, text))
        return

    for number, line in enumerate(read_lines(path, encoding), 1):
        place = f"{path}:{number}"
        if line.strip():
            try:
                row = parse_json(place, line)
            except DataError as error:
                row = error
            yield place, row


def parse_json(place: object, text: str) -> Any:
    with errors_as(DataError, f"{place}: not JSON"):
        return json.loads(text)


def csv_rows(path: Path, fields: list[str], encoding: str, **style: Any) -> Rows:
    csv.field_size_limit(2**31 - 1)
    with open_text(path, encoding, "surrogateescape", newline="") as file:
        rows = csv.DictReader(file, restval="", strict=True, **style)
        row: Any = {}
        while row is not None:
            try:
                row = next(rows, None)
                if row and None in row:
                    raise csv.Error("there are more values than the header has names")
            except csv.Error as error:
                row = DataError(f"{path}:{rows.reader.line_num}: {error}")
            if row:
                yield f"{path}:{rows.line_num}", row


def parquet_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        columns = fields if set(fields) <= set(file.schema_arrow.names) else None
        batches = file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
        yield from numbered(path, (row for batch in batches for row in batch.to_pylist()))


READERS: dict[str, Callable[..., Rows]] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": partial(csv_rows, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": parquet_rows,
}


def table_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    """If there are all of the fields, only they are read. An error is yielded in place of what
    cannot be read: others may follow."""
    kind = suffix_of(path)
    known = ", ".join(READERS)
    try:
        with errors_as(DataError, f"cannot read {path}"):
            if kind not in READERS:
                raise DataError(f"{path} is not a table; expected a name that ends in {known}")
            yield from READERS[kind](path, fields, encoding)
    except DataError as error:
        yield str(path), error


def texts_of(place: str, row: Any, fields: list[str], hint: str = "") -> list[str]:
    """The texts of these fields; all that are missing are named together. hint: what to set."""
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object such as {{"{fields[0]}": "..."}}')

    values = {field: look_up(row, field) for field in fields}
    missing = [repr(field) for field in fields if values[field] is None and field not in row]
    if missing:
        names = " and no ".join(missing)
        raise DataError(f"{place} has no {names}; its fields are: {', '.join(row)}{hint}")
    for field, value in values.items():
        if not isinstance(value, str):
            raise DataError(f"{place} has {value!r:.40} as {field!r}, not text")
    return [values[field] for field in fields]


def look_up(row: dict[str, Any], field: str) -> Any:
    """The value of a field; that of body in doc, if it is doc.body."""
    outer, _, inner = field.partition(".")
    if field in row or not isinstance(row.get(outer), dict):
        return row.get(field)
    return look_up(row[outer], inner)


class Table(Files):
    """Each row is a document."""

    settings: ClassVar[tuple[str, ...]] = ()  # that name its fields

    def fields(self) -> list[str]:
        return [getattr(self, setting) for setting in self.settings]

    def texts(self, place: str, row: Any) -> list[str]:
        names = " and ".join(f"data.{setting}" for setting in self.settings)
        return texts_of(place, row, self.fields(), f"; set {names}; {CHAT_HINT}")

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            rows = table_rows(path, self.fields(), self.encoding)
            yield from row_documents(rows, self.texts)


def row_documents(rows: Rows, read: Callable[[str, Any], list[str]]) -> Iterator[Document]:
    for place, row in rows:
        try:
            texts = row if isinstance(row, DataError) else read(place, row)
        except DataError as error:
            texts = error
        yield Document(place, texts)


@dataclass
class TextTable(Table):
    settings = ("field",)
    field: str


@dataclass
class PairTable(Table):
    input_kind = "pairs"
    settings = ("source", "target")
    source: str
    target: str


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


def read_turns(place: str, row: Any) -> list[str]:
    """The roles and contents of a row, in turn. An instruction, which an input may follow, and its
    output are two."""
    row = row if isinstance(row, dict) else {"messages": row}
    messages = row.get("messages")
    for question, answer in PAIRS.items():
        if messages is None and question in row:
            asked = row[question]
            if row.get("input"):
                asked = f"{asked}\n\n{row['input']}"
            messages = to_messages(["user", asked, "assistant", row.get(answer)])

    if not messages or not isinstance(messages, list):
        raise DataError(f"{place} has {row!r:.60}; {EXPECTED}")

    turns: list[str] = []
    for message in messages:
        role, content = texts_of(place, message, FIELDS)
        given = {name for name, value in message.items() if value is not None}
        if given != {*FIELDS} or role not in ROLES or not content.strip():
            raise DataError(f"{place} has the message {message!r:.60}; {MESSAGE}")
        turns += [role, content]
    return turns
