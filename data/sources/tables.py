"""Tables: the rows of .jsonl, .ndjson, .json, .csv, .tsv and .parquet files, and the sources that
read a field of each, a pair of fields, or conversations."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from configs.errors import DataError, errors_as
from data.chat import to_messages
from data.readers import open_text, read_chunks, read_lines, suffix_of
from data.sources.files import Files
from data.sources.source import Document

FIELDS = ["role", "content"]
ROLES = ("system", "user", "assistant")
PAIRS = {"prompt": "completion", "instruction": "output"}
EXPECTED = (
    "expected a list of messages, prompt and completion, or instruction and output (and input)"
)
MESSAGE = "expected a role (system, user or assistant) and a content, not empty, and no other key"
BATCH_ROWS = 64  # at a time from a parquet file, whose row groups may not fit in memory
Rows = Iterator[tuple[str, Any]]  # (place, row, or a DataError)


def attempt(read: Callable, *arguments: Any) -> Any:
    """The result of read(), or the DataError that it raises."""
    try:
        return read(*arguments)
    except DataError as error:
        return error


def numbered(name: object, rows: Iterable) -> Rows:
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def json_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    """The rows of JSON Lines, which may be lists, or of a JSON list: a file that begins with a
    bracket which its first line does not close, or that has only this line. (The datasets library
    would parse dates in texts.)"""
    lines = filter(str.strip, read_lines(path, encoding))
    first = next(lines, "").strip()
    has_more = next(lines, None) is not None
    is_list = first.startswith("[") and not (first.endswith("]") and has_more)

    if is_list:
        yield from numbered(path, parse_json(path, "".join(read_chunks(path, encoding))))
        return
    for number, line in enumerate(read_lines(path, encoding), 1):
        place = f"{path}:{number}"
        if line.strip():
            yield place, attempt(parse_json, place, line)


def parse_json(place: object, text: str) -> Any:
    with errors_as(DataError, f"{place}: not JSON"):
        return json.loads(text)


def csv_rows(path: Path, fields: list[str], encoding: str, **style: Any) -> Rows:
    csv.field_size_limit(2**31 - 1)
    with open_text(path, encoding, "surrogateescape", newline="") as file:
        rows = csv.DictReader(file, restval="", strict=True, **style)
        names = rows.fieldnames or []
        if len({*names}) < len(names):
            raise DataError(f"{path}: two columns have the same name")
        while True:
            row: Any
            try:
                row = next(rows)
                if None in row:
                    raise csv.Error("there are more values than names in the header")
            except StopIteration:
                return
            except csv.Error as error:
                row = DataError(f"{path}:{rows.reader.line_num}: {error}")
            yield f"{path}:{rows.line_num}", row


def parquet_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        columns = fields if set(fields) <= set(file.schema_arrow.names) else None
        batches = file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
        yield from numbered(path, (row for batch in batches for row in batch.to_pylist()))


READERS: dict[str, Callable[..., Rows]] = {
    ".jsonl": json_rows,
    ".ndjson": json_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": partial(csv_rows, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": parquet_rows,
}


def table_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    """The rows of a table; if it has all the fields, only these are read. An error is yielded in
    place of what cannot be read: more rows may follow."""
    kind = suffix_of(path)
    try:
        if kind not in READERS:
            known = ", ".join(READERS)
            raise DataError(f"{path} is not a table; expected a name that ends in {known}")
        with errors_as(DataError, f"cannot read {path}"):
            yield from READERS[kind](path, fields, encoding)
    except DataError as error:
        yield str(path), error


def text_of(place: str, row: Any, field: str, kinds: Any = str) -> str:
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object such as {{"{field}": "..."}}')
    value = look_up(row, field)
    if not isinstance(value, kinds):
        is_chat = "messages" in row or (field not in row and not row.keys().isdisjoint(PAIRS))
        hint = "conversations are read by data=chat; " if is_chat else ""
        names = ", ".join(row)
        if not names.isprintable():
            hint = "it may be in another data.encoding; "
        raise DataError(
            f"{place} has {value!r:.40} as {field!r}, not text; {hint}its fields are: {names}"
        )
    return str(value)


def look_up(row: dict, field: str) -> Any:
    """The value of a field; for doc.body, that of body in doc."""
    outer, _, inner = field.partition(".")
    nested = row.get(outer)
    if field in row or not isinstance(nested, dict):
        return row.get(field)
    return look_up(nested, inner)


def read_turns(place: str, row: Any) -> list[str]:
    """The roles and contents of a row, alternating. An instruction, with its input if any, and its
    output are two messages, after a system text if there is one."""
    row = row if isinstance(row, dict) else {"messages": row}
    messages = row.get("messages")

    for question, answer in PAIRS.items():
        if messages is None and {question, answer} <= row.keys():  # the first that a row has
            asked = text_of(place, row, question)
            given = row.get("input")
            if given or type(given) in (int, float):  # 0 is an input, false is none
                asked += "\n\n" + text_of(place, row, "input", str | int | float)
            texts = ["system", row["system"]] if row.get("system") else []
            texts += ["user", asked, "assistant", text_of(place, row, answer)]
            messages = to_messages(texts)

    if not messages or not isinstance(messages, list):
        raise DataError(f"{place} has {row!r:.60}; {EXPECTED}")
    turns = []
    for message in messages:
        role, content = [text_of(place, message, field) for field in FIELDS]
        given = {name for name, value in message.items() if value is not None}
        if given != {*FIELDS} or role not in ROLES or not content.strip():
            raise DataError(f"{place} has the message {message!r:.60}; {MESSAGE}")
        turns += [role, content]
    return turns


class Table(Files):
    """Fields of a table (jsonl, json, csv, tsv, parquet); each row is a document."""

    def fields(self) -> list[str]:
        raise NotImplementedError

    def texts(self, place: str, row: Any) -> list[str]:
        return [text_of(place, row, field) for field in self.fields()]

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            yield from row_documents(table_rows(path, self.fields(), self.encoding), self.texts)


def row_documents(rows: Rows, texts_of: Callable[[str, Any], list[str]]) -> Iterator[Document]:
    for place, row in rows:
        if not isinstance(row, DataError):
            row = attempt(texts_of, place, row)
        yield Document(place, row)


@dataclass
class TextTable(Table):
    """A text of each row, or a text and its label."""

    field: str
    label: str | None = None

    @property
    def input_kind(self) -> str:  # type: ignore[override]
        return "labels" if self.label else "text"

    def fields(self) -> list[str]:
        return [self.field, self.label] if self.label else [self.field]

    def texts(self, place: str, row: Any) -> list[str]:
        texts = [text_of(place, row, self.field)]
        if self.label:
            texts.append(text_of(place, row, self.label, str | int))  # also true and false
        return texts


@dataclass
class PairTable(Table):
    input_kind = "pairs"
    source: str
    target: str

    def fields(self) -> list[str]:
        return [self.source, self.target]


class Chat(Table):
    """Conversations, as alternating roles and contents: the messages of a row, or an instruction
    and its answer."""

    input_kind = "chat"

    def fields(self) -> list[str]:
        return ["messages"]

    def texts(self, place: str, row: Any) -> list[str]:
        turns = read_turns(place, row)
        if "assistant" not in turns[::2]:
            raise DataError(f"{place}: the assistant has no message to learn from")
        return turns
