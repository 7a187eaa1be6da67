"""Readers of files. A text is read in chunks, so it need not fit in memory."""

import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from configs.errors import DataError

CHUNK_CHARS = 1 << 18  # tiktoken's regex fails on 900,000 spaces in a row
# all pre-tokenizers split between a letter or digit and white space: a cut there changes no token
TOKEN_BOUNDARY = re.compile(r"[^\W_](?=\s)")
COMPRESSED = (".gz", ".zst")
TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")  # sources/tables.py reads them
HINT = (
    "set data.encoding, use data=table for a table, or select files with a glob such as "
    "'folder/**/*.txt'"
)
HIDDEN = r"\..*"
# parts of the standard library with little to learn: tests, tools, other packages, character tables
NOT_LIBRARY = (
    rf"{HIDDEN}|(idle_)?tests?|idlelib|turtledemo|ensurepip|lib2to3|encodings|__pycache__|"
    "(site|dist)-packages"
)


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
        except OSError as error:  # from a damaged compressed file
            raise DataError(f"cannot read {path}: {error}") from None


def read_chunks(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    with open_text(path, encoding, "strict") as file:
        while text := file.read(CHUNK_CHARS):
            yield text


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield lines without line ends. Bytes that are not text are let through: read_begin
    refuses them, because it can name the line."""
    with open_text(path, encoding, "surrogateescape") as file:
        for line in file:
            yield line.removesuffix("\n").removesuffix("\r")


def slice_chunks(chunks: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the characters from start to stop of all chunks together."""
    for chunk in chunks:
        yield chunk[max(start, 0) : max(stop, 0)]
        start -= len(chunk)
        stop -= len(chunk)


def rechunk(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the same text in chunks of about CHUNK_CHARS, cut at token boundaries if possible."""
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


def suffix_of(path: Path) -> str:
    """The suffix that tells the kind of file, compressed or not."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    return name.suffix.lower()
