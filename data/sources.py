"""Sources of text, of pairs, a source text and its target, and of conversations, always in the same
order."""

import ast
import os
import random
import textwrap
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any, Literal, NamedTuple

from configs.cli import expand_user
from configs.compose import with_defaults
from configs.errors import DataError, errors_as, first_line
from configs.registry import Bounds, Count, Positive, Ratio, Registry, build, check_value
from data import readers
from data.chat import read_turns
from data.disk import atomic_write
from data.readers import find_files, read_chunks, read_lines, stdlib_files, text_of

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)


class Document(NamedTuple):
    """A text, a source and its target, or a conversation; without texts, what the file `name`
    holds."""

    name: Path | str  # for messages; without texts, the path that is read
    # no iterator, for they are read more than once; an error, if they cannot be read
    texts: Iterable[str] | DataError | None = None
    encoding: str = "utf-8"

    def chunks(self) -> Iterator[str]:
        if isinstance(self.texts, DataError):
            raise self.texts
        if isinstance(self.texts, str):
            raise ValueError("Document(name, texts): texts is a str; expected a list of them")
        if self.texts is None:
            return read_chunks(Path(self.name), self.encoding)
        return iter(self.texts)


@dataclass
class Source:
    """Documents, which change only when files do, if there are any."""

    input_kind = "text"
    on_error = "error"
    cache: str
    val_fraction: Ratio
    document_mask: bool = field(default=False, kw_only=True)

    def files(self) -> list[Path]:
        return []

    def held_out(self) -> "list[Source]":
        """The source of the validation documents, if they have files of their own."""
        return []

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def version(self) -> list[tuple[str, int, int]]:
        """(name, size, time) of each file."""
        files = []
        for part in (self, *self.held_out()):
            for path in part.files():
                stat = path.stat()
                files.append((os.path.abspath(path), stat.st_size, stat.st_mtime_ns))
        return files


@dataclass
class Python(Source):
    """The running Python's standard library; each file is a document."""

    def files(self) -> list[Path]:
        return stdlib_files()


@dataclass(kw_only=True)
class Files(Source):
    """Files, folders (recursively) or globs; those of val_path are all for validation."""

    path: str | list[str]
    val_path: str | list[str] | None = None
    encoding: str = "utf-8"
    on_error: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding)
        except LookupError:
            hint = "no text encoding of Python; try utf-8, latin-1, cp1252 or utf-16"
            raise ValueError(f"encoding is {self.encoding!r:.60}, {hint}") from None

    def files(self) -> list[Path]:
        found = find_files(self.path, self.cache)
        for part in self.held_out():
            held_out = set(map(Path.resolve, part.files()))
            # if all are held out, they are for both
            found = [path for path in found if path.resolve() not in held_out] or found
        return found

    def held_out(self) -> list[Source]:
        return [replace(self, path=self.val_path, val_path=None)] if self.val_path else []


@dataclass
class Text(Files):
    """Plain text."""

    split_on: Literal["file", "line"]

    def files(self) -> list[Path]:
        found = super().files()
        kinds = readers.TABLES.keys() - {".json"}  # often the settings of a program
        tables = [path for path in found if readers.suffix_of(path) in kinds]
        if tables:
            hint = "data=table reads one of their fields, data=chat conversations"
            others = "a glob such as 'folder/**/*.txt' selects other files"
            count = f"{len(tables)} tables, such as {tables[0]}"
            raise DataError(f"data.path={self.path} has {count}; {hint}, and {others}")
        return found

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            if self.split_on == "file":
                yield Document(path, None, self.encoding)
                continue
            for number, line in enumerate(read_lines(path, self.encoding), 1):
                yield Document(f"{path}:{number}", [line])


class Table(Files):
    """Fields of a table (jsonl, json, csv, tsv, parquet); each row is a document."""

    def fields(self) -> list[str]:
        raise NotImplementedError

    def texts(self, place: str, row: Any) -> list[str]:
        return [text_of(place, row, field) for field in self.fields()]

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            rows = readers.table_rows(path, self.fields(), self.encoding)
            yield from row_documents(rows, self.texts)


def row_documents(
    rows: readers.Rows, texts_of: Callable[[str, Any], list[str]]
) -> Iterator[Document]:
    for place, row in rows:
        if not isinstance(row, DataError):
            row = readers.attempt(texts_of, place, row)
        yield Document(place, row)


@dataclass
class TextTable(Table):
    field: str

    def fields(self) -> list[str]:
        return [self.field]


@dataclass
class PairTable(Table):
    input_kind = "pairs"
    source: str
    target: str

    def fields(self) -> list[str]:
        return [self.source, self.target]


class Chat(Table):
    """Conversations, as roles and contents in turn: the messages of a row, or an instruction and
    its answer."""

    input_kind = "chat"

    def fields(self) -> list[str]:
        return ["messages"]

    def texts(self, place: str, row: Any) -> list[str]:
        turns = read_turns(place, row)
        if "assistant" not in turns[::2]:
            raise DataError(f"{place}: the assistant has no message to learn from")
        return turns


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
    on_error: Literal["error", "skip"] = "error"

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
            place = f"{self.id} from the Hugging Face Hub ({first_line(error)})"
            hint = "check its name and the network, or give the folder of a copy: data.id=FOLDER"
            raise DataError(f"cannot get {place}; {hint}") from None

        with suppress(OSError):  # a cache that has all tokens need not be writable
            atomic_write(known, commit)
        return commit

    def documents(self) -> Iterator[Document]:
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        is_local = self.folder.is_dir()

        with errors_as(DataError, f"cannot read {self.id}"):
            table = datasets.load_dataset(
                self.folder.as_posix(),
                self.name,
                split=self.split,
                revision=None if is_local else self.commit,
                streaming=self.streaming or is_local,  # a cached copy of a folder could be stale
            )
            column = self.field.partition(".")[0]
            if column in (table.column_names or ()):
                table = table.select_columns([column])  # do not decode images and the like
            yield from row_documents(
                readers.numbered(self.id, table),
                lambda place, row: [text_of(place, row, self.field)],
            )


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


@dataclass
class Mix(Source):
    """Other sources, by name, each with its settings and a weight."""

    sources: dict[str, Any]

    def __post_init__(self) -> None:
        shared = {"cache": self.cache, "document_mask": self.document_mask}  # set for all at once
        usual = {"val_fraction": self.val_fraction, "weight": 1}
        kinds = {name: kind for name, kind in SOURCES.items() if kind is not Mix}
        self.weights: dict[str, float] = {}
        self.members: list[Source] = []

        for name, node in self.sources.items():
            path = f"data.sources.{name}"
            options = usual | with_defaults(check_value(path, node, dict))
            self.weights[name] = check_value(f"{path}.weight", options.pop("weight"), Positive)
            self.members.append(build(path, kinds, options, shared))

        input_kinds = {member.input_kind for member in self.members}
        if len(input_kinds) != 1:
            raise ValueError("sources are needed that are all text, all pairs or all conversations")
        [self.input_kind] = input_kinds


SOURCES: Registry[type[Source]] = Registry(
    python=Python,
    text=Text,
    table=TextTable,
    hub=Hub,
    shakespeare=Shakespeare,
    pairs=PairTable,
    chat=Chat,
    parallel=ParallelText,
    docstrings=Docstrings,
    synthetic=Synthetic,
    mix=Mix,
)
