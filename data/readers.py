"""Readers of files, documents and table rows. A text is read in chunks, so it need not fit in memory."""

import csv
import glob
import json
import os
import re
import sysconfig
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from configs.cli import expand_user
from configs.errors import DataError
from data.disk import disk_errors

CHUNK_CHARS = 1 << 18  # regexes fail on 900,000 spaces in a row
# Every pre-tokenizer splits between a letter or digit and white space, so a cut there changes no token.
TOKEN_BOUNDARY = re.compile(r"[^\W_](?=\s)")
BATCH_ROWS = 64  # of a parquet file, whose row groups may not fit in memory
HINT = "; convert it, use data=table for a table, or select files with a glob such as 'folder/**/*.txt'"
# parts of the standard library that teach little: tests, tools, copies of other packages, character tables
NOT_LIBRARY = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "encodings",
}
NOT_LIBRARY |= {"site-packages", "dist-packages", "__pycache__"}


def walk_files(folder, exclude=()):
    """All files below a folder, except hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in exclude]
        yield from (os.path.join(root, name) for name in files if not name.startswith("."))


def stdlib_files():
    """The source files of the running Python's standard library."""
    root = sysconfig.get_path("stdlib")
    files = [Path(name) for name in walk_files(root, exclude=NOT_LIBRARY) if name.endswith(".py")]
    if not files:
        raise DataError(
            f"this Python has no source files in {root}; use data=text data.path=FOLDER"
        )
    return sorted(files, key=Path.as_posix)


def resolve_paths(path, cache):
    """The files that a name, folder or glob stands for, except the cache; hidden ones only by name."""
    if not path:
        raise ValueError("data.path is empty; give a file, a folder or a glob")
    place = expand_user(path)
    if os.path.isfile(place):  # Path.is_file raises an error if the name is too long
        return [place]
    names = walk_files(place) if os.path.isdir(place) else glob.glob(str(place), recursive=True)
    ours = os.path.join(os.path.abspath(expand_user(cache or os.devnull)), "")
    files = [
        name
        for name in names
        if os.path.isfile(name) and not os.path.abspath(name).startswith(ours)
    ]
    if files:
        return [Path(name) for name in sorted(files)]
    if os.path.isdir(place):
        raise DataError(f"there is no text in the folder {path}: it holds no files")
    if os.path.exists(place):
        raise DataError(f"{path} is neither a file nor a folder")
    what = "file that matches" if glob.has_magic(path) else "file or folder"
    raise DataError(f"there is no {what} {path} (in {Path.cwd()})")


class Document(NamedTuple):
    """A file, or a text and its name for error messages."""

    name: str | Path
    text: str | None = None

    def chunks(self):
        return read_chunks(self.name) if self.text is None else iter([self.text])


def read_chunks(path):
    """The text of a UTF-8 file, unchanged except that a byte order mark is dropped."""
    with disk_errors("cannot read", path), open(path, encoding="utf-8-sig", newline="") as file:
        try:
            while text := file.read(CHUNK_CHARS):
                if "\0" in text:
                    raise DataError(f"{path} is not text: there is a NUL byte{HINT}")
                yield text
        except UnicodeDecodeError as error:
            at, byte = (
                file.buffer.tell() - len(error.object) + error.start,
                error.object[error.start],
            )
            raise DataError(
                f"{path} is not UTF-8: byte 0x{byte:02x} at offset {at}{HINT}"
            ) from None


def read_lines(path):
    """The lines of a UTF-8 file, without line ends."""
    pending = []
    for text in read_chunks(path):
        *lines, rest = text.split("\n")
        for line in lines:
            yield "".join([*pending, line]).removesuffix("\r")
            pending = []
        pending.append(rest)
    if line := "".join(pending):
        yield line.removesuffix("\r")


def rechunk(chunks):
    """The same text in chunks of about CHUNK_CHARS, cut at token boundaries if there are any."""
    rest = ""
    for chunk in chunks:
        text, start = rest + chunk, 0
        while len(text) - start >= 2 * CHUNK_CHARS:
            boundary = TOKEN_BOUNDARY.search(text, start + CHUNK_CHARS, start + 2 * CHUNK_CHARS)
            stop = boundary.end() if boundary else start + 2 * CHUNK_CHARS
            yield text[start:stop]
            start = stop
        rest = text[start:]
    if rest:
        yield rest


def file_rows(paths, fields):
    """(place, the texts of these fields) for each row of each file."""
    for path in paths:
        suffix = path.suffix.lower()
        if suffix not in FORMATS:
            raise DataError(
                f"{path} is not a table; expected a name that ends in {', '.join(FORMATS)}"
            )
        if not path.stat().st_size:
            raise DataError(f"{path} is empty")
        yield from text_fields(FORMATS[suffix](path, fields), fields, path)


def numbered(name, rows):
    return ((f"{name}, row {number}", row) for number, row in enumerate(rows, 1))


def json_rows(path, _fields):
    """(place, row) of JSON Lines, or of a JSON list. The datasets library would parse dates in texts."""
    if next(read_chunks(path), "").lstrip().startswith("["):
        yield from numbered(path, parse_json(path, "".join(read_chunks(path))))
        return
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield f"{path}:{number}", parse_json(f"{path}:{number}", line)


def parse_json(place, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None


def csv_rows(path, _fields):
    csv.field_size_limit(2**31 - 1)
    options = (
        {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {}
    )
    with reader_errors(path), open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, restval="", strict=True, **options)
        for row in rows:
            if None in row:
                raise DataError(
                    f"{path}:{rows.line_num}: there are more values than the header has names"
                )
            yield f"{path}:{rows.line_num}", row


def parquet_rows(path, fields):
    from pyarrow.parquet import ParquetFile

    with reader_errors(path), ParquetFile(path) as file:
        columns = fields if set(fields) <= set(file.schema_arrow.names) else None
        batches = file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False)
        yield from numbered(path, chain.from_iterable(batch.to_pylist() for batch in batches))


FORMATS = {".jsonl": json_rows, ".json": json_rows}
FORMATS |= {".csv": csv_rows, ".tsv": csv_rows, ".parquet": parquet_rows}


@contextmanager
def reader_errors(name):
    """Turn whatever the readers raise into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"cannot read {name}: {first_line(error.__cause__ or error)}") from error


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def text_fields(rows, fields, name):
    """(place, the texts of these fields) for each row."""
    for place, row in rows:
        if not isinstance(row, dict):
            raise DataError(f'{place}: expected an object such as {{"{fields[0]}": "..."}}')
        for field in fields:
            if field not in row:
                raise DataError(f"{name} has no field {field!r}; its fields are: {', '.join(row)}")
            if not isinstance(row[field], str):
                value = "null" if row[field] is None else f"{row[field]!r:.40}"
                raise DataError(f"{place}: {field} is {value}; expected text")
        yield place, [row[field] for field in fields]


def hub_rows(dataset, name, split, revision, streaming, fields):
    """Rows of a dataset on the Hugging Face Hub, or in a folder."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    with reader_errors(dataset):
        if not os.path.isdir(dataset):
            try:
                options = {"split": split, "revision": revision, "streaming": streaming}
                table = datasets.load_dataset(dataset, name, **options)
            except Exception as error:  # of the network, of many libraries
                raise download_error(dataset, error) from None
        elif not any(
            os.path.exists(os.path.join(dataset, f)) for f in ("dataset_dict.json", "state.json")
        ):
            # streaming, because a cached copy could be stale
            table = datasets.load_dataset(dataset, name, split=split, streaming=True)
        elif name or revision:
            raise DataError(
                f"{dataset} was saved to disk: data.name and data.revision do not apply"
            )
        else:
            loaded = datasets.load_from_disk(dataset)
            splits = loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
            if split not in splits:
                raise DataError(
                    f"{dataset} has no split {split!r}; its splits are: {', '.join(splits)}"
                )
            table = splits[split]
        if isinstance(table, datasets.Dataset):
            table = table.to_iterable_dataset()
        if set(fields) <= set(table.column_names or ()):
            table = table.select_columns(fields)  # do not decode images and the like
        yield from text_fields(numbered(dataset, table), fields, dataset)


def download_error(dataset, error):
    hint = "check its name and the network, or give the folder of a copy: data.id=FOLDER"
    return DataError(
        f"cannot get {dataset} from the Hugging Face Hub ({first_line(error)}); {hint}"
    )
