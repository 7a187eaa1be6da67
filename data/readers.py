"""Documents: texts of any length, read a piece at a time, so that none need fit in memory."""

import codecs
import csv
import glob
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from configs.errors import DataError
from data.disk import disk_errors
from data.files import resolve_paths

PIECE = 1 << 19  # characters, or bytes of a file, at hand at once
# Between a letter or digit and the white space after it the words of every encoding here end: text may be cut
# there without changing one token.
SEAM = re.compile(r"[^\W_](?=\s)")
WAY_OUT = "; convert it, or choose the files of a folder by a pattern such as 'folder/**/*.txt'"


class Document(NamedTuple):
    """A name for error messages, and the text in pieces, anew at each call."""

    name: str
    pieces: Callable[[], Iterator[str]]


def from_text(name, text):
    return Document(name, lambda: iter([text]))


def file_document(path):
    return Document(str(path), lambda: read_pieces(path))


def read_pieces(path):
    """The text of a UTF-8 file, as it is: only a byte order mark is left out."""
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    with disk_errors("cannot read"), open(path, "rb") as file:
        while True:
            data = file.read(PIECE)
            if b"\0" in data:
                nul = offset + data.index(b"\0")
                raise DataError(f"{path} is not text: there is a NUL byte at offset {nul}{WAY_OUT}")
            held, _ = decoder.getstate()
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                at, byte = offset - len(held) + error.start, error.object[error.start]
                raise DataError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {at}{WAY_OUT}") from None
            if offset == 0:
                text = text.removeprefix("\ufeff")
            if text:
                yield text
            if not data:
                return
            offset += len(data)


def read_lines(path):
    """The lines of a UTF-8 file, without their ends."""
    begun = []  # of a line that goes on
    for text in read_pieces(path):
        *lines, rest = text.split("\n")
        for line in lines:
            yield "".join([*begun, line]).removesuffix("\r")
            begun = []
        begun.append(rest)
    if line := "".join(begun):
        yield line.removesuffix("\r")


def rechunk(pieces):
    """The same text in pieces of about PIECE characters, cut only at seams. (Without any seam in sight it is
    cut where it must be.)"""
    rest = ""
    for piece in pieces:
        text, start = rest + piece, 0
        while len(text) - start >= 2 * PIECE:
            seam = next_boundary(text, start + PIECE)
            yield text[start:seam]
            start = seam
        rest = text[start:]
    if rest:
        yield rest


def next_boundary(text, start):
    """The first seam from `start` on, else the end of what there is."""
    found = SEAM.search(text, start, start + PIECE)
    return found.end() if found else start + PIECE


FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def table_files(path, cache):
    files = resolve_paths(path, cache)
    if Path(path).expanduser().is_dir():
        files = [file for file in files if file.suffix.lower() in FORMATS]
        if not files:
            raise DataError(f"there is no table in the folder {path}: none of {', '.join(FORMATS)}")
    return files


def file_rows(paths, fields):
    """(place, the texts of these fields) for each row of some files."""
    for path in paths:
        if path.suffix.lower() not in FORMATS:
            raise DataError(f"{path} is no table: expected a name that ends in one of {', '.join(FORMATS)}")
        if not path.stat().st_size:
            raise DataError(f"{path} is empty")
        rows = json_rows(path) if path.suffix.lower() in (".jsonl", ".json") else table_rows(path, fields)
        yield from text_fields(rows, fields, path)


def json_rows(path):
    """(place, row) of a file with an object in each line, or with one list of objects. (Readers of tables
    would take texts that look like dates for dates.)"""
    if next(read_pieces(path), "").lstrip().startswith("["):
        rows = read_json(path, "".join(read_pieces(path)))
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
        return
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, read_json(place, line)


def read_json(place, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from None


def table_rows(path, fields):
    import datasets

    silence_datasets(datasets)
    options = {}
    if path.suffix.lower() in (".csv", ".tsv"):  # a text such as "007" or "NA" stays what it is
        options = {"keep_default_na": False, "converters": {field: str for field in fields}}
    if path.suffix.lower() == ".tsv":  # which knows no quotes
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    if "::" in str(path):
        raise DataError(f"{path} cannot be opened as a table: rename it without '::'")
    kind = "parquet" if path.suffix.lower() == ".parquet" else "csv"
    with reader_errors(path):
        files = glob.escape(str(path))
        table = datasets.load_dataset(kind, data_files=files, split="train", streaming=True, **options)
        yield from numbered(table, path)


def silence_datasets(datasets):
    """What its readers have to say is said in our sentence."""
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)


def numbered(table, name):
    return ((f"{name}, row {number}", row) for number, row in enumerate(table, 1))


@contextmanager
def reader_errors(name):
    """Whatever the readers of so many formats raise, in one sentence."""
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
    """What is no text in these fields is refused, with its place."""
    for place, row in rows:
        if not isinstance(row, dict):
            raise DataError(f'{place}: expected an object such as {{"{fields[0]}": "..."}}')
        for field in fields:
            if field not in row:
                raise DataError(f"{name} has no field {field!r}; its fields are: {', '.join(row)}")
            if not isinstance(row[field], str):
                said = "null" if row[field] is None else f"{row[field]!r:.40}"
                raise DataError(f"{place}: {field} is {said}; expected text")
        yield place, [row[field] for field in fields]


def hub_rows(dataset, name, split, revision, streaming, fields):
    """Rows of a dataset of the Hugging Face Hub, or of a folder that holds one."""
    with reader_errors(dataset):
        table = open_dataset(dataset, name, split, revision, streaming)
        if set(fields) <= set(table.column_names or ()):
            table = table.select_columns(fields)  # so that pictures beside them are not unpacked
        yield from text_fields(numbered(table, dataset), fields, dataset)


def open_dataset(dataset, name, split, revision, streaming):
    import datasets

    silence_datasets(datasets)
    if os.path.isdir(dataset):
        if not saved(Path(dataset)):  # streaming: a copy of what it was once would be stale
            return datasets.load_dataset(dataset, name, split=split, streaming=True)
        if name or revision:
            raise DataError(f"{dataset} was saved to disk: data.name and data.revision say nothing about it")
        loaded = datasets.load_from_disk(dataset)
        return pick(loaded, split, dataset).to_iterable_dataset()
    try:
        table = datasets.load_dataset(dataset, name, split=split, revision=revision, streaming=streaming)
    except Exception as error:  # of the network, of many libraries
        raise DataError(download_error(dataset, error)) from None
    return table if streaming else table.to_iterable_dataset()


def saved(folder):
    """Whether save_to_disk wrote it."""
    return (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()


def pick(loaded, split, dataset):
    parts = loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
    if split not in parts:
        raise DataError(f"{dataset} has no split {split!r}; its splits are: {', '.join(parts)}")
    return parts[split]


def download_error(dataset, error):
    return (
        f"cannot get {dataset} from the Hugging Face Hub ({first_line(error)}); check its name and the "
        "network, or give the folder of a copy: data.id=FOLDER"
    )
