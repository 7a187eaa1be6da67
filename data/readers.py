"""Readers of files, documents and table rows. A text is read in chunks, so it need not fit in
memory."""

import csv
import glob
import json
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from configs.cli import expand_user
from configs.errors import DataError, errors_as

CHUNK_CHARS = 1 << 18  # tiktoken's regex fails on 900,000 spaces in a row
# every pre-tokenizer splits between a letter or digit and white space: a cut there changes no token
TOKEN_BOUNDARY = re.compile(r"[^\W_](?=\s)")
BATCH_ROWS = 64  # of a parquet file, whose row groups may not fit in memory
COMPRESSED = (".gz", ".zst")
HINT = (
    "set data.encoding, use data=table for a table, or select files with a glob such as "
    "'folder/**/*.txt'"
)
HIDDEN = r"\..*"
# parts of the standard library that teach little: tests, tools, other packages, character tables
NOT_LIBRARY = (
    rf"{HIDDEN}|(idle_)?tests?|idlelib|turtledemo|ensurepip|lib2to3|encodings|__pycache__|"
    "(site|dist)-packages"
)

Rows = Iterator[tuple[str, Any]]  # (place, row, or a DataError)


def walk_files(folder: str, skipped: str = HIDDEN) -> Iterator[str]:
    """All files below a folder, except hidden ones; `skipped` are names of folders."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not re.fullmatch(skipped, name)]
        for name in files:
            if not name.startswith("."):
                yield os.path.join(root, name)


def stdlib_files() -> list[Path]:
    """The source files of the running Python's standard library."""
    names = walk_files(sysconfig.get_path("stdlib"), NOT_LIBRARY)
    files = [Path(name) for name in names if name.endswith(".py")]
    return sorted(files, key=Path.as_posix)


def find_files(path: str | list[str], cache: str) -> list[Path]:
    """The files that a name, folder or glob stands for, or a list of them, except those of the
    cache; hidden ones only by name."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a glob")
    if isinstance(path, list):
        listed = [file for name in path for file in find_files(str(name), cache)]
        return list(dict.fromkeys(listed))

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
def open_text(path: Path, encoding: str, errors: str, newline: str = "\n") -> Iterator[TextIO]:
    """A file, perhaps compressed, unchanged except that a byte order mark of UTF-8 is dropped."""
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding

    if path.suffix in COMPRESSED:
        import pyarrow

        stream = pyarrow.input_stream(path)
    else:
        stream = path.open("rb")

    with stream, TextIOWrapper(stream, codec, errors, newline) as file:
        try:
            yield file
        except UnicodeError as error:
            reason = getattr(error, "reason", error)
            raise DataError(f"{path} is not {encoding.upper()} ({reason}); {HINT}") from None
        except OSError as error:  # of a compressed file that is damaged
            raise DataError(f"cannot read {path}: {error}") from None


def read_chunks(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    with open_text(path, encoding, "strict") as file:
        while text := file.read(CHUNK_CHARS):
            yield text


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Without line ends. Bytes that are not text are refused by read_begin, which knows the line."""
    with open_text(path, encoding, "surrogateescape") as file:
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


TABLES: dict[str, Callable[..., Rows]] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": partial(csv_rows, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": parquet_rows,
}


def suffix_of(path: Path) -> str:
    """What kind of file it is, compressed or not."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    return name.suffix.lower()


def table_rows(path: Path, fields: list[str], encoding: str) -> Rows:
    """If there are all of the fields, only they are read. An error is yielded in place of what
    cannot be read: others may follow."""
    kind = suffix_of(path)
    try:
        if kind not in TABLES:
            known = ", ".join(TABLES)
            raise DataError(f"{path} is not a table; expected a name that ends in {known}")
        with errors_as(DataError, f"cannot read {path}"):
            yield from TABLES[kind](path, fields, encoding)
    except DataError as error:
        yield str(path), error


def text_of(place: str, row: Any, field: str) -> str:
    if not isinstance(row, dict):
        raise DataError(f'{place}: expected an object such as {{"{field}": "..."}}')
    value = look_up(row, field)
    if not isinstance(value, str):
        is_chat = not row.keys().isdisjoint(("messages", "prompt", "instruction"))
        hint = "conversations are read by data=chat; " if is_chat else ""
        names = ", ".join(row)
        if not names.isprintable():
            hint = "it may be in another data.encoding; "
        found = f"{value!r:.40} as {field!r}, not text"
        raise DataError(f"{place} has {found}; {hint}its fields are: {names}")
    return value


def look_up(row: dict[str, Any], field: str) -> Any:
    """The value of a field; that of body in doc, if it is doc.body."""
    outer, _, inner = field.partition(".")
    nested = row.get(outer)
    if field in row or not isinstance(nested, dict):
        return row.get(field)
    return look_up(nested, inner)
