"""Readers of files, documents and table rows. A text is read in chunks, so it need not fit in
memory."""

import csv
import glob
import json
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from configs.cli import expand_user
from configs.errors import DataError
from configs.registry import Registry

CHUNK_CHARS = 1 << 18  # tiktoken's regex fails on 900,000 spaces in a row
# every pre-tokenizer splits between a letter or digit and white space: a cut there changes no token
TOKEN_BOUNDARY = re.compile(r"[^\W_](?=\s)")
BATCH_ROWS = 64  # of a parquet file, whose row groups may not fit in memory
HINT = (
    "convert it, use data=table for a table, or select files with a glob such as 'folder/**/*.txt'"
)
HIDDEN = r"\..*"
# parts of the standard library that teach little: tests, tools, other packages, character tables
NOT_LIBRARY = (
    rf"{HIDDEN}|(idle_)?tests?|idlelib|turtledemo|ensurepip|lib2to3|encodings|__pycache__|"
    "(site|dist)-packages"
)

Rows = Iterable[tuple[str, Any]]  # (place, row)
TextRows = Iterator[tuple[str, list[str]]]  # (place, some fields of a row)


def walk_files(folder: str, skipped: str = HIDDEN) -> Iterator[str]:
    """All files below a folder, except hidden ones; `skipped` are names of folders."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not re.fullmatch(skipped, name)]
        yield from (os.path.join(root, name) for name in files if not name.startswith("."))


def stdlib_files() -> list[Path]:
    """The source files of the running Python's standard library."""
    names = walk_files(sysconfig.get_path("stdlib"), NOT_LIBRARY)
    return sorted((Path(name) for name in names if name.endswith(".py")), key=Path.as_posix)


def find_files(path: str, cache: str) -> list[Path]:
    """The files that a name, folder or glob stands for, except those of the cache; hidden ones
    only by name."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a glob")

    place = str(expand_user(path))
    if os.path.isfile(place):
        return [Path(place)]

    found = walk_files(place) if os.path.isdir(place) else glob.iglob(place, recursive=True)
    ours = os.path.join(os.path.abspath(expand_user(cache)), "")
    names = [name for name in found if not os.path.abspath(name).startswith(ours)]
    files = [Path(name) for name in sorted(names) if os.path.isfile(name)]
    if not files:
        raise DataError(f"there is no file at {path} (in {Path.cwd()})")
    return files


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file, unchanged except that a byte order mark is dropped."""
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 ({error.reason}); {HINT}") from None


def read_chunks(path: Path) -> Iterator[str]:
    with open_text(path) as file:
        while text := file.read(CHUNK_CHARS):
            yield text


def read_lines(path: Path) -> Iterator[str]:
    """Without line ends."""
    with open_text(path) as file:
        for line in file:
            yield line.removesuffix("\n").removesuffix("\r")


def slice_chunks(chunks: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """The characters from start to stop of all chunks together."""
    for chunk in chunks:
        yield chunk[max(start, 0) : max(stop, 0)]
        start -= len(chunk)
        stop -= len(chunk)


def rechunk(chunks: Iterable[str]) -> Iterator[str]:
    """The same text in chunks of about CHUNK_CHARS, cut at token boundaries if there are any."""
    rest = ""

    for chunk in chunks:
        text = rest + chunk
        start = 0
        while len(text) - start >= 2 * CHUNK_CHARS:
            stop = start + 2 * CHUNK_CHARS
            if boundary := TOKEN_BOUNDARY.search(text, start + CHUNK_CHARS, stop):
                stop = boundary.end()
            yield text[start:stop]
            start = stop
        rest = text[start:]

    if rest:
        yield rest


def numbered(name: object, rows: Iterable) -> Rows:
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def json_rows(path: Path, fields: list[str]) -> Rows:
    """Of JSON Lines, or of a JSON list. The datasets library would parse dates in texts."""
    if next(read_chunks(path), "").lstrip().startswith("["):
        yield from numbered(path, parse_json(path, "".join(read_chunks(path))))
        return

    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, parse_json(place, line)


def parse_json(place: object, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{place}: not JSON: {error}") from None


def csv_rows(path: Path, fields: list[str]) -> Rows:
    csv.field_size_limit(2**31 - 1)
    is_tsv = path.suffix.lower() == ".tsv"
    style: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {}

    with reader_errors(path), open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, restval="", strict=True, **style)
        for row in rows:
            place = f"{path}:{rows.line_num}"
            if None in row:
                raise DataError(f"{place}: there are more values than the header has names")
            yield place, row


def parquet_rows(path: Path, fields: list[str]) -> Rows:
    from pyarrow.parquet import ParquetFile

    with reader_errors(path), ParquetFile(path) as file:
        columns = fields if set(fields) <= set(file.schema_arrow.names) else None
        batches = file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
        yield from numbered(path, chain.from_iterable(batch.to_pylist() for batch in batches))


TABLES = Registry(
    {
        ".jsonl": json_rows,
        ".json": json_rows,
        ".csv": csv_rows,
        ".tsv": csv_rows,
        ".parquet": parquet_rows,
    }
)


def table_rows(path: Path, fields: list[str]) -> TextRows:
    return text_fields(raw_rows(path, fields), fields)


def raw_rows(path: Path, fields: list[str]) -> Rows:
    """Their values may be of any type; only these fields are read if there are all of them."""
    if path.suffix.lower() not in TABLES:
        known = ", ".join(TABLES)
        raise DataError(f"{path} is not a table; expected a name that ends in {known}")
    return TABLES[path.suffix.lower()](path, fields)


def text_fields(rows: Rows, fields: list[str]) -> TextRows:
    for place, row in rows:
        if not isinstance(row, dict):
            raise DataError(f'{place}: expected an object such as {{"{fields[0]}": "..."}}')
        for field in fields:
            if not isinstance(row.get(field), str):
                found = f"{row.get(field)!r:.40} as {field!r}, not text"
                raise DataError(f"{place} has {found}; its fields are: {', '.join(row)}")
            try:
                row[field].encode()
            except UnicodeEncodeError as error:  # of half a character in JSON, such as \ud83d
                raise DataError(f"{place}: {field} is not text: {error}") from None
        yield place, [row[field] for field in fields]


@contextmanager
def reader_errors(name: object) -> Iterator[None]:
    """Turn whatever the libraries raise into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"cannot read {name}: {first_line(error.__cause__ or error)}") from error


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
