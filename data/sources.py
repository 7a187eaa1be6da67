"""Sources of text and of pairs, a source text and its target, always in the same order."""

import ast
import hashlib
import os
import textwrap
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby, starmap, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from configs.cli import expand_user
from configs.errors import DataError
from configs.registry import Bounds, Count
from data import readers
from data.disk import atomic_write, disk_errors
from data.readers import find_files, read_chunks, read_lines, stdlib_files
from data.shuffle import hash_seed, random_words

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


class Document(NamedTuple):
    """A text or, of a pair, a source and its target; without texts, what the file `name` holds."""

    name: Path | str  # for messages
    texts: Sequence[str] = ()

    def chunks(self) -> Iterator[str]:
        return iter(self.texts) if self.texts else read_chunks(Path(self.name))


class Source:
    """Documents, which change only when files do, if there are any."""

    input_kind = "text"
    max_tokens: int | None = None

    def files(self) -> list[Path]:
        return []

    def documents(self) -> Iterator[Document]:
        return map(Document, self.files())

    def version(self) -> list[tuple[str, int, int]]:
        """(name, size, time) of each file."""
        with disk_errors("cannot read", Path()):
            stats = [(os.path.abspath(path), path.stat()) for path in self.files()]
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


@dataclass
class Python(Source):
    """The running Python's standard library; each file is a document."""

    def files(self) -> list[Path]:
        return stdlib_files()


@dataclass
class Text(Source):
    """Plain text: a file, a folder (recursively) or a glob."""

    path: str
    split_on: Literal["file", "line", "paragraph"]
    cache: str

    def files(self) -> list[Path]:
        return find_files(self.path, self.cache)

    def documents(self) -> Iterator[Document]:
        """Each file, each line, or each paragraph: lines up to an empty one."""
        for path in self.files():
            lines = enumerate(read_lines(path), 1)
            if self.split_on == "file":
                yield Document(path)
            elif self.split_on == "line":
                yield from (Document(f"{path}:{number}", [line]) for number, line in lines)
            else:
                for has_text, group in groupby(lines, key=lambda line: bool(line[1].strip())):
                    if has_text:
                        numbers, paragraph = zip(*group, strict=True)
                        yield Document(f"{path}:{numbers[0]}", ["\n".join(paragraph)])


class Table(Source):
    """One field of a table (jsonl, json, csv, tsv, parquet); each row is a document."""

    def __init__(self, path: str, field: str, cache: str) -> None:
        self.path = path
        self.fields = [field]
        self.cache = cache

    def files(self) -> list[Path]:
        files = find_files(self.path, self.cache)
        if not expand_user(self.path).is_dir():
            return files
        tables = [file for file in files if file.suffix.lower() in readers.TABLES]

        if not tables:
            known = ", ".join(readers.TABLES)
            raise DataError(f"there is no table in the folder {self.path}; supported are {known}")

        return tables

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            yield from starmap(Document, readers.table_rows(path, self.fields))


class PairTable(Table):
    """Two fields of a table."""

    input_kind = "pairs"

    def __init__(self, path: str, source: str, target: str, cache: str) -> None:
        if source == target:
            raise ValueError(f"source and target are both {source!r}; name two fields")
        super().__init__(path, source, cache)
        self.fields = [source, target]


@dataclass
class Hub(Source):
    """One field of a dataset on the Hugging Face Hub, or in a folder; `streaming` keeps no copy."""

    id: str
    name: str | None
    split: str
    field: str
    revision: str | None
    streaming: bool
    cache: str
    max_tokens: Count | None

    def __post_init__(self) -> None:
        self.folder = expand_user(self.id)

    def files(self) -> list[Path]:
        return find_files(self.id) if self.folder.is_dir() else []

    def version(self) -> list[tuple[str, int, int]]:
        return super().version() if self.folder.is_dir() else [(self.commit, 0, 0)]

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

        with readers.reader_errors(self.id):
            table = self.load()
            if self.field in (table.column_names or ()):
                table = table.select_columns([self.field])  # do not decode images and the like
            rows = readers.numbered(self.id, table)
            yield from starmap(Document, readers.text_fields(rows, [self.field]))

    def load(self) -> Any:
        import datasets

        folder = str(self.folder)
        options: dict[str, Any] = {"name": self.name, "split": self.split}

        if not self.folder.is_dir():
            options |= {"revision": self.commit, "streaming": self.streaming}
            return datasets.load_dataset(self.id, **options)

        if not {"dataset_dict.json", "state.json"} & set(os.listdir(folder)):
            # a cached copy could be stale
            return datasets.load_dataset(folder, **options, streaming=True)

        if self.name or self.revision:
            reason = "data.name and data.revision do not apply"
            raise DataError(f"{folder} was saved to disk: {reason}")

        splits = datasets.load_from_disk(folder)
        if isinstance(splits, datasets.Dataset):
            splits = {str(splits.split or "train"): splits}
        if self.split not in splits:
            known = ", ".join(splits)
            raise DataError(f"{folder} has no split {self.split!r}; its splits are: {known}")

        return splits[self.split]


@dataclass
class Shakespeare(Source):
    """Tiny Shakespeare, the text of many small benchmarks; downloaded once."""

    cache: str

    def files(self) -> list[Path]:
        path = expand_user(self.cache) / "tinyshakespeare.txt"
        if not path.exists():
            download(SHAKESPEARE, path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != SHAKESPEARE_SHA256:
            raise DataError(f"{path} is not the expected file; remove it and run again")
        return [path]


def download(url: str, path: Path) -> None:
    draft = path.with_suffix(f".{os.getpid()}")  # other processes may download it, too
    try:
        urllib.request.urlretrieve(url, draft)
    except OSError as error:
        sentence = f"cannot download {url} ({getattr(error, 'reason', error)})"
        raise DataError(f"{sentence}; put a copy of that file at {path}") from None

    draft.replace(path)


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
                n, m = (sum(1 for _ in read_lines(path)) for path in (source, target))
                both = f"{source} has {n} lines and {target} has {m}"
                raise DataError(f"{both}; they must have equally many")
            yield Document(f"{source}:{number}", texts)


@dataclass
class Docstrings(Source):
    """Functions of the standard library without their docstring -> its first line."""

    input_kind = "pairs"

    def files(self) -> list[Path]:
        return stdlib_files()

    def documents(self) -> Iterator[Document]:
        for path in self.files():
            yield from documented_functions(path)


@cache  # they are read more than once, and parsing takes seconds
def documented_functions(path: Path) -> list[Document]:
    text = "".join(read_chunks(path))
    lines = text.split("\n")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the library's own code
        tree = ast.parse(text)

    documents = []

    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        summary = (ast.get_docstring(node) or "").split("\n")[0].strip()
        begin = node.body[0].lineno
        end = node.body[0].end_lineno

        # a docstring alone, or one that shares a line with code, cannot be cut out
        if summary and len(node.body) > 1 and begin != node.lineno and node.body[1].lineno != end:
            rest = lines[node.lineno - 1 : begin - 1] + lines[end : node.end_lineno]
            function = textwrap.dedent("\n".join(rest))
            documents.append(Document(f"{path}:{node.lineno}", (function, summary)))

    return documents


def letters(words: list[int]) -> str:
    return "".join(chr(ord("a") + word % 26) for word in words)


def add(left: list[int], right: list[int]) -> tuple[str, str]:
    a, b = (int("".join(str(word % 10) for word in words)) for words in (left, right))
    return f"{a}+{b}", str(a + b)


TASKS = {  # two lists of random integers -> source and target
    "copy": lambda words, _: (letters(words), letters(words)),
    "reverse": lambda words, _: (letters(words), letters(words)[::-1]),
    "sort": lambda words, _: (letters(words), "".join(sorted(letters(words)))),
    "add": add,
}


@dataclass
class Synthetic(Source):
    """Any number of small tasks with one right answer, for demonstrations and tests."""

    input_kind = "pairs"
    task: Literal["copy", "reverse", "sort", "add"]
    size: Annotated[int, Bounds(least=2)]
    min_length: Count
    max_length: Annotated[int, Bounds(most=1000)]

    def __post_init__(self) -> None:
        if self.max_length < self.min_length:
            expected = f"it must be at least min_length, {self.min_length}"
            raise ValueError(f"max_length is {self.max_length}; {expected}")

    def documents(self) -> Iterator[Document]:
        seed = hash_seed("synthetic", self.task)
        n_lengths = self.max_length - self.min_length + 1

        for number in range(self.size):
            [row] = random_words(seed, [number], 2 + 2 * self.max_length).tolist()
            n, m = (self.min_length + word % n_lengths for word in row[:2])
            left = row[2 : 2 + n]
            right = row[2 + self.max_length :][:m]
            yield Document(f"pair {number}", TASKS[self.task](left, right))


SOURCES = {
    "python": Python,
    "text": Text,
    "table": Table,
    "hub": Hub,
    "shakespeare": Shakespeare,
    "pairs": PairTable,
    "parallel": ParallelText,
    "docstrings": Docstrings,
    "synthetic": Synthetic,
}
