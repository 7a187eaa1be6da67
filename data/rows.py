"""Rows: tables of many formats, as the texts of some of their fields."""

import csv
import glob
import json
import os
from contextlib import contextmanager
from pathlib import Path

from data.documents import read_lines, read_pieces
from data.errors import DataError
from data.files import found_files

FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def table_files(path, cache):
    files = found_files(path, cache)
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
        yield from texts_of(rows, fields, path)


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

    quiet(datasets)
    options = {}
    if path.suffix.lower() in (".csv", ".tsv"):  # a text such as "007" or "NA" stays what it is
        options = {"keep_default_na": False, "converters": {field: str for field in fields}}
    if path.suffix.lower() == ".tsv":  # which knows no quotes
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    if "::" in str(path):
        raise DataError(f"{path} cannot be opened as a table: rename it without '::'")
    kind = "parquet" if path.suffix.lower() == ".parquet" else "csv"
    with guarded(path):
        files = glob.escape(str(path))
        table = datasets.load_dataset(kind, data_files=files, split="train", streaming=True, **options)
        yield from numbered(table, path)


def quiet(datasets):
    """What its readers have to say is said in our sentence."""
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)


def numbered(table, name):
    return ((f"{name}, row {number}", row) for number, row in enumerate(table, 1))


@contextmanager
def guarded(name):
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


def texts_of(rows, fields, name):
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
    with guarded(dataset):
        table = open_dataset(dataset, name, split, revision, streaming)
        if set(fields) <= set(table.column_names or ()):
            table = table.select_columns(fields)  # so that pictures beside them are not unpacked
        yield from texts_of(numbered(table, dataset), fields, dataset)


def open_dataset(dataset, name, split, revision, streaming):
    import datasets

    quiet(datasets)
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
        raise DataError(unreachable(dataset, error)) from None
    return table if streaming else table.to_iterable_dataset()


def saved(folder):
    """Whether save_to_disk wrote it."""
    return (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()


def pick(loaded, split, dataset):
    parts = loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
    if split not in parts:
        raise DataError(f"{dataset} has no split {split!r}; its splits are: {', '.join(parts)}")
    return parts[split]


def unreachable(dataset, error):
    return (
        f"cannot get {dataset} from the Hugging Face Hub ({first_line(error)}); check its name and the "
        "network, or give the folder of a copy: data.id=FOLDER"
    )
