"""Rows of tables. What cannot be read is an error that names its place, and others may follow."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from configs.errors import DataError, errors_as
from data.readers import open_text, read_chunks, read_lines, suffix_of

BATCH_ROWS = 64  # of a parquet file, whose row groups may not fit in memory
Rows = Iterator[tuple[str, Any]]  # (place, row, or a DataError)


def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, or the DataError that it raises."""
    try:
        return read(*arguments)
    except DataError as error:
        return error


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
            yield place, attempt(parse_json, place, line)


def parse_json(place: object, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{place}: not JSON: {error}") from None


def csv_rows(path: Path, fields: list[str], encoding: str, **style: Any) -> Rows:
    csv.field_size_limit(2**31 - 1)
    with open_text(path, encoding, "surrogateescape", newline="") as file:
        rows = csv.DictReader(file, restval="", strict=True, **style)
        while True:
            row: Any
            try:
                row = next(rows)
                if None in row:
                    raise csv.Error("there are more values than the header has names")
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
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": partial(csv_rows, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": parquet_rows,
}


def table_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    """If there are all of the fields, only they are read. An error is yielded in place of what
    cannot be read: others may follow."""
    kind = suffix_of(path)
    try:
        if kind not in READERS:
            known = ", ".join(READERS)
            raise DataError(f"{path} is not a table; expected a name that ends in {known}")
        with errors_as(DataError, f"cannot read {path}"):
            yield from READERS[kind](path, fields, encoding)
    except DataError as error:
        yield str(path), error


def texts_of(place: str, row: Any, fields: list[str], hint: str = "") -> list[str]:
    """The texts of these fields; all that are missing are named together. hint: what to set."""
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object such as {{"{fields[0]}": "..."}}')
    values = [look_up(row, field) for field in fields]
    if all(isinstance(value, str) for value in values):
        return values

    missing = []
    for field, value in zip(fields, values, strict=True):
        if value is None and field not in row:
            missing.append(repr(field))
        elif not isinstance(value, str):
            raise DataError(f"{place} has {value!r:.40} as {field!r}, not text")
    names = ", ".join(row)
    if not names.isprintable():
        hint = "it may be in another data.encoding"
    elif not row.keys().isdisjoint(("messages", "prompt", "instruction")):
        hint = "conversations are read by data=chat"
    ending = f"; {hint}" if hint else ""
    raise DataError(f"{place} has no {' and no '.join(missing)}; its fields are: {names}{ending}")


def look_up(row: dict[str, Any], field: str) -> Any:
    """The value of a field; that of body in doc, if it is doc.body."""
    outer, _, inner = field.partition(".")
    nested = row.get(outer)
    if field in row or not isinstance(nested, dict):
        return row.get(field)
    return look_up(nested, inner)
