"""Sources of text, of pairs, a source text and its target, and of conversations, always in the same
order."""

import ast
import os
import random
import textwrap
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import starmap, zip_longest
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Literal, NamedTuple

from configs.cli import expand_user
from configs.errors import DataError
from configs.registry import Bounds, Count, Ratio, Registry
from data import readers
from data.chat import read_turns
from data.disk import atomic_write
from data.readers import find_files, read_chunks, read_lines, stdlib_files

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)


class Document(NamedTuple):
    """A text, a source and its target, or a conversation; without texts, what the file `name`
    holds."""

    name: Path | str  # for messages; without texts, the path that is read
    texts: Iterable[str] | None = None  # of a source read more than once: no iterator

    def chunks(self) -> Iterator[str]:
        if isinstance(self.texts, str):
            raise ValueError("Document(name, texts): texts is a str; expected a list of them")
        return read_chunks(Path(self.name)) if self.texts is None else iter(self.texts)


@dataclass
class Source:
    """Documents, which change only when files do, if there are any."""

    input_kind = "text"
    cache: str
    val_fraction: Ratio

    def files(self) -> list[Path]:
        return []

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def version(self) -> list[tuple[str, int, int]]:
        """(name, size, time) of each file."""
        stats = [(os.path.abspath(path), path.stat()) for path in self.files()]
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


@dataclass
class Python(Source):
    """The running Python's standard library; each file is a document."""

    def files(self) -> list[Path]:
        return stdlib_files()


@dataclass
class Files(Source):
    """A file, a folder (recursively) or a glob."""

    path: str

    def files(self) -> list[Path]:
        return find_files(self.path, self.cache)


@dataclass
class Text(Files):
    """Plain text."""

    split_on: Literal["file", "line"]

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            if self.split_on == "file":
                yield Document(path)
            else:
                for number, line in enumerate(read_lines(path), 1):
                    yield Document(f"{path}:{number}", [line])


@dataclass
class Table(Files):
    """One field of a table (jsonl, json, csv, tsv, parquet); each row is a document."""

    field: str

    def documents(self) -> Iterator[Document]:
        return table_documents(self.files(), [self.field])


@dataclass
class PairTable(Files):
    """Two fields of a table."""

    input_kind = "pairs"
    source: str
    target: str

    def documents(self) -> Iterator[Document]:
        return table_documents(self.files(), [self.source, self.target])


@dataclass
class Chat(Files):
    """Conversations, as roles and contents in turn: the messages of a row, or an instruction and
    its answer."""

    input_kind = "chat"

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            for place, row in readers.raw_rows(path, ["messages"]):
                turns = read_turns(place, row)
                if "assistant" not in turns[::2]:
                    raise DataError(f"{place}: the assistant has no message to learn from")
                yield Document(place, turns)


def table_documents(files: list[Path], fields: list[str]) -> Iterator[Document]:
    for path in files:
        yield from starmap(Document, readers.table_rows(path, fields))


@dataclass
class Hub(Source):
    """One field of a dataset on the Hugging Face Hub, or in a folder; `streaming` keeps no copy."""

    id: str
    name: str | None
    split: str
    field: str
    revision: str | None
    streaming: bool
    max_tokens: Count | None

    def __post_init__(self) -> None:
        self.folder = expand_user(self.id)

    def files(self) -> list[Path]:
        return find_files(self.id, self.cache) if self.folder.is_dir() else []

    def version(self) -> list[tuple[str, int, int]]:
        return super().version() or [(self.commit, 0, 0)]

    @cached_property
    def commit(self) -> str:
        """Of a dataset on the hub; offline, the last that is known."""
        import huggingface_hub

        name = f"{self.id}@{self.revision}.commit".replace("/", "--")
        known = expand_user(self.cache) / name

        try:
            api = huggingface_hub.HfApi()
            commit = str(api.dataset_info(self.id, revision=self.revision).sha)
        except Exception as error:  # of the network, of many libraries
            if known.exists():
                return known.read_text()
            place = f"{self.id} from the Hugging Face Hub ({readers.first_line(error)})"
            hint = "check its name and the network, or give the folder of a copy: data.id=FOLDER"
            raise DataError(f"cannot get {place}; {hint}") from None

        with suppress(OSError):  # a cache that has all tokens need not be writable
            atomic_write(known, commit)
        return commit

    def documents(self) -> Iterator[Document]:
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        is_local = self.folder.is_dir()

        with readers.reader_errors(self.id):
            table = datasets.load_dataset(
                self.folder.as_posix(),
                self.name,
                split=self.split,
                revision=None if is_local else self.commit,
                streaming=self.streaming or is_local,  # a cached copy of a folder could be stale
            )
            if self.field in (table.column_names or ()):
                table = table.select_columns([self.field])  # do not decode images and the like
            rows = readers.numbered(self.id, table)
            yield from starmap(Document, readers.text_fields(rows, [self.field]))


@dataclass
class Shakespeare(Source):
    """Tiny Shakespeare, the text of many small benchmarks; downloaded once."""

    def files(self) -> list[Path]:
        path = expand_user(self.cache) / "tinyshakespeare.txt"
        if path.exists():
            return [path]

        draft = path.with_suffix(f".{os.getpid()}")  # other processes may download it, too
        try:
            urllib.request.urlretrieve(SHAKESPEARE, draft)
        except OSError as error:
            sentence = f"cannot download {SHAKESPEARE} ({getattr(error, 'reason', error)})"
            raise DataError(f"{sentence}; put a copy of that file at {path}") from None
        draft.replace(path)
        return [path]


@dataclass
class ParallelText(Source):
    """Two text files with a source and its target in the same line."""

    input_kind = "pairs"
    source: str
    target: str

    def files(self) -> list[Path]:
        return [expand_user(self.source), expand_user(self.target)]

    def documents(self) -> Iterator[Document]:
        source, target = self.files()
        lines = zip_longest(read_lines(source), read_lines(target))

        for number, texts in enumerate(lines, 1):
            if None in texts:
                reason = f"only one of them has a line {number}"
                raise DataError(f"{source} and {target} need equally many lines; {reason}")
            yield Document(f"{source}:{number}", texts)


@dataclass
class Docstrings(Python):
    """Functions of the standard library without their docstring -> its first line."""

    input_kind = "pairs"

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            yield from documented_functions(path)


@cache  # they are read more than once, and parsing takes seconds
def documented_functions(path: Path) -> list[Document]:
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    documents = []

    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring, *rest = node.body
        summary = (ast.get_docstring(node) or "").partition("\n")[0].strip()
        if summary and rest:
            kept = lines[node.lineno - 1 : docstring.lineno - 1]
            kept += lines[docstring.end_lineno : node.end_lineno]
            function = textwrap.dedent("\n".join(kept))
            documents.append(Document(f"{path}:{node.lineno}", (function, summary)))

    return documents


@dataclass
class Synthetic(Source):
    """Any number of random strings and their reverse, for demonstrations and tests."""

    input_kind = "pairs"
    size: Annotated[int, Bounds(least=2)]
    min_length: Count
    max_length: Annotated[int, Bounds(most=1000)]

    def __post_init__(self) -> None:
        if self.max_length < self.min_length:
            expected = f"it must be at least min_length, {self.min_length}"
            raise ValueError(f"max_length is {self.max_length}; {expected}")

    def documents(self) -> Iterator[Document]:
        draw = random.Random(0)  # always the same strings

        for number in range(self.size):
            length = draw.randint(self.min_length, self.max_length)
            text = "".join(draw.choices(ascii_lowercase, k=length))
            yield Document(f"pair {number}", (text, text[::-1]))


SOURCES = Registry(
    python=Python,
    text=Text,
    table=Table,
    hub=Hub,
    shakespeare=Shakespeare,
    pairs=PairTable,
    chat=Chat,
    parallel=ParallelText,
    docstrings=Docstrings,
    synthetic=Synthetic,
)
