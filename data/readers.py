"""Readers of documents and table rows. Texts of any length are read in chunks, so none need fit in memory."""

import codecs
import csv
import glob
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from configs.errors import DataError
from data.disk import disk_errors
from data.files import resolve_paths

CHUNK_CHARS = 1 << 19  # or bytes of a file
# Every pre-tokenizer splits between a letter or digit and white space, so a cut there changes no token.
TOKEN_BOUNDARY = re.compile(r"[^\W_](?=\s)")
HINT = "; convert it, use data=table for a table, or select files with a glob such as 'folder/**/*.txt'"
FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


class Document(NamedTuple):
    """A file, or a text and its name for error messages."""

    name: str | Path
    text: str | None = None

    def chunks(self):
        return read_chunks(self.name) if self.text is None else iter([self.text])


def read_chunks(path):
    """The text of a UTF-8 file, unchanged except that a byte order mark is dropped."""
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    with disk_errors("cannot read"), open(path, "rb") as file:
        while True:
            data = file.read(CHUNK_CHARS)
            if b"\0" in data:
                nul = offset + data.index(b"\0")
                raise DataError(f"{path} is not text: there is a NUL byte at offset {nul}{HINT}")
            pending, _ = decoder.getstate()
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                at, byte = offset - len(pending) + error.start, error.object[error.start]
                raise DataError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {at}{HINT}") from None
            if offset == 0:
                text = text.removeprefix("\ufeff")
            if text:
                yield text
            if not data:
                return
            offset += len(data)


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


def table_files(path, cache):
    files = resolve_paths(path, cache)
    if Path(path).expanduser().is_dir():
        files = [file for file in files if file.suffix.lower() in FORMATS]
        if not files:
            raise DataError(f"there is no table in the folder {path}; supported are {', '.join(FORMATS)}")
    return files


def file_rows(paths, fields):
    """(place, the texts of these fields) for each row of each file."""
    for path in paths:
        suffix = path.suffix.lower()
        if suffix not in FORMATS:
            raise DataError(f"{path} is not a table; expected a name that ends in {', '.join(FORMATS)}")
        if not path.stat().st_size:
            raise DataError(f"{path} is empty")
        rows = json_rows(path) if suffix in (".jsonl", ".json") else table_rows(path, suffix, fields)
        yield from text_fields(rows, fields, path)


def json_rows(path):
    """(place, row) of JSON Lines, or of a JSON list. The datasets library would parse dates in texts."""
    if next(read_chunks(path), "").lstrip().startswith("["):
        rows = parse_json(path, "".join(read_chunks(path)))
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
        return
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield f"{path}:{number}", parse_json(f"{path}:{number}", line)


def parse_json(place, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None


def table_rows(path, suffix, fields):
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # our error says it all
    options = {}
    if suffix in (".csv", ".tsv"):  # keep texts such as "007" or "NA"
        options = {"keep_default_na": False, "converters": {field: str for field in fields}}
    if suffix == ".tsv":  # has no quotes
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    if "::" in str(path):
        raise DataError(f"{path} cannot be opened as a table: rename it without '::'")
    kind, files = suffix[1:].replace("tsv", "csv"), glob.escape(str(path))
    with reader_errors(path):
        table = datasets.load_dataset(kind, data_files=files, split="train", streaming=True, **options)
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(table, 1))


@contextmanager
def reader_errors(name):
    """Turn whatever the readers raise into a DataError."""
    try:
        yield
    except (DataError, GeneratorExit):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, UnicodeDecodeError):
            cause = f"not UTF-8: byte 0x{cause.object[cause.start]:02x}"
        raise DataError(f"cannot read {name}: {first_line(cause)}") from error


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
    with reader_errors(dataset):
        table = open_dataset(dataset, name, split, revision, streaming)
        if set(fields) <= set(table.column_names or ()):
            table = table.select_columns(fields)  # do not decode images and the like
        rows = ((f"{dataset}, row {number}", row) for number, row in enumerate(table, 1))
        yield from text_fields(rows, fields, dataset)


def open_dataset(dataset, name, split, revision, streaming):
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if not os.path.isdir(dataset):
        try:
            table = datasets.load_dataset(dataset, name, split=split, revision=revision, streaming=streaming)
        except Exception as error:  # of the network, of many libraries
            raise download_error(dataset, error) from None
        return table if streaming else table.to_iterable_dataset()
    if not any(os.path.exists(os.path.join(dataset, f)) for f in ("dataset_dict.json", "state.json")):
        # streaming, because a cached copy could be stale
        return datasets.load_dataset(dataset, name, split=split, streaming=True)
    if name or revision:
        raise DataError(f"{dataset} was saved to disk: data.name and data.revision do not apply")
    loaded = datasets.load_from_disk(dataset)
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
    if split not in splits:
        raise DataError(f"{dataset} has no split {split!r}; its splits are: {', '.join(splits)}")
    return splits[split].to_iterable_dataset()


def download_error(dataset, error):
    hint = "check its name and the network, or give the folder of a copy: data.id=FOLDER"
    return DataError(f"cannot get {dataset} from the Hugging Face Hub ({first_line(error)}); {hint}")
