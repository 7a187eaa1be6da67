"""Rows: tables of any format the `datasets` library reads, as dictionaries of texts."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

from data.errors import DataError

FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}


def file_rows(paths, fields):
    """(place, the texts of these fields) for each row of some files."""
    for path in paths:
        with reading(path):
            yield from texts_of(open_table(path, fields), fields, path)


@contextmanager
def reading(name):
    """Whatever the readers of so many formats raise, in one sentence."""
    try:
        yield
    except (DataError, GeneratorExit):
        raise
    except Exception as error:
        raise DataError(unreadable(name, error)) from error


def open_table(path, fields):
    import datasets

    kind = FORMATS.get(path.suffix)
    if kind is None:
        raise DataError(f"{path} is no table: expected a name that ends in one of {', '.join(FORMATS)}")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty")
    options = {}
    if kind == "csv":  # a text such as "007" or "NA" stays what it is
        options = {"sep": "\t" if path.suffix == ".tsv" else ",", "keep_default_na": False}
        options["converters"] = {field: str for field in fields}
    return datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True, **options)


def texts_of(table, fields, name):
    """What is no text in these fields is refused, with its place."""
    number = 0
    if set(fields) <= set(table.column_names or ()):
        table = table.select_columns(fields)  # so that pictures beside them are not unpacked
    for rows in table.iter(1000):
        if missing := [field for field in fields if field not in rows]:
            raise DataError(f"{name} has no field {missing[0]!r}; its fields are: {', '.join(rows)}")
        for texts in zip(*(rows[field] for field in fields), strict=True):
            number += 1
            for field, text in zip(fields, texts, strict=True):
                if not isinstance(text, str):
                    raise DataError(f"{place(name, number)}: {field} is {spelled(text)}; expected text")
            yield place(name, number), texts


def spelled(value):
    return "null" if value is None else repr(value)[:40]


def place(name, row):
    """Where a row of a file stands: for lines of JSON, by line."""
    return f"{name}:{row}" if str(name).endswith(".jsonl") else f"{name}, row {row}"


def unreadable(name, error):
    if isinstance(name, Path) and name.suffix == ".jsonl" and (found := bad_line(name)):
        return found
    said = str(error.__cause__ or error).strip() or type(error).__name__
    return f"cannot read {name}: {said.splitlines()[0]}"


def bad_line(path):
    """The first line that is no JSON object."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else {}
            except UnicodeDecodeError as error:
                return f"{path}:{number}: not UTF-8: byte 0x{error.object[error.start]:02x}"
            except ValueError as error:
                return f"{path}:{number}: not JSON: {error}"
            if not isinstance(row, dict):
                return f'{path}:{number}: expected an object such as {{"text": "..."}}'


def hub_rows(dataset, name, split, revision, streaming, fields):
    """Rows of a dataset of the Hugging Face Hub, or of a folder that holds one."""
    with reading(dataset):
        yield from texts_of(open_dataset(dataset, name, split, revision, streaming), fields, dataset)


def open_dataset(dataset, name, split, revision, streaming):
    import datasets

    if os.path.isdir(dataset) and saved(Path(dataset)):
        loaded = datasets.load_from_disk(dataset)
        table = pick(loaded, split, dataset) if isinstance(loaded, dict) else loaded
        return table.to_iterable_dataset()
    try:
        table = datasets.load_dataset(dataset, name, split=split, revision=revision, streaming=streaming)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise DataError(unreachable(dataset, error)) from None
    return table if streaming else table.to_iterable_dataset()


def saved(folder):
    """Whether save_to_disk wrote it."""
    return (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()


def pick(parts, split, dataset):
    if split not in parts:
        raise DataError(f"{dataset} has no split {split!r}; its splits are: {', '.join(parts)}")
    return parts[split]


def unreachable(dataset, error):
    said = str(error).splitlines()[0]
    return (
        f"cannot get {dataset} from the Hugging Face Hub ({said}); check its name and the network, "
        "or give the folder of a copy: data.id=FOLDER"
    )
