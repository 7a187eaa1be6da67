"""Sources of text and of pairs: a source text and its target. Each has the same order every time."""

import ast
import hashlib
import os
import textwrap
import urllib.request
import warnings
from functools import cache
from itertools import groupby, zip_longest
from typing import Annotated

from configs.cli import expand_user
from configs.errors import DataError
from configs.registry import Bounds, Count
from data import readers
from data.disk import digest, disk_errors, stat_key
from data.readers import FORMATS, Document
from data.shuffle import hash_seed, random_words

SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394


class FileSource:
    """A source that is determined by the contents and names of its files, if it has any."""

    input_kind, max_tokens = "text", None

    def documents(self):
        return map(Document, self.files())

    def digest(self, hashes):
        files = self.files()
        root = os.path.commonpath([path.parent for path in files])
        with disk_errors("cannot read"):
            known = [(os.path.relpath(path, root), hashes.get(path)) for path in files]
        return hashlib.sha256(repr(known).encode("utf-8", "surrogateescape")).hexdigest()

    def stat_key(self):
        """Changes when a file does."""
        return [stat_key(os.stat(path)) for path in self.files()]

    def n_bytes(self):
        return sum(path.stat().st_size for path in self.files()) or None


class Python(FileSource):
    """The running Python's standard library; each file is a document."""

    files = staticmethod(readers.stdlib_files)


class Text(FileSource):
    """Plain text: a file, a folder (recursively) or a glob."""

    def __init__(self, path: str, split_on: Annotated[str, ("file", "line", "paragraph")], cache):
        self.path, self.split_on, self.cache = path, split_on, cache

    def files(self):
        return readers.resolve_paths(self.path, self.cache)

    def documents(self):
        """Each file, each line, or each paragraph: lines up to an empty one."""
        for path in self.files():
            lines = enumerate(readers.read_lines(path), 1)
            if self.split_on == "file":
                yield Document(path)
            elif self.split_on == "line":
                yield from (Document(f"{path}:{number}", line) for number, line in lines)
            else:
                for has_text, group in groupby(lines, key=lambda item: bool(item[1].strip())):
                    if has_text:
                        numbers, paragraph = zip(*group, strict=True)
                        yield Document(f"{path}:{numbers[0]}", "\n".join(paragraph))


class Table(FileSource):
    """One field of a table (jsonl, json, csv, tsv, parquet); each row is a document."""

    def __init__(self, path: str, field: str, cache):
        self.path, self.field, self.cache = path, field, cache

    def files(self):
        path, files = self.path, readers.resolve_paths(self.path, self.cache)
        if expand_user(path).is_dir():
            files = [file for file in files if file.suffix.lower() in FORMATS]
            if not files:
                raise DataError(
                    f"there is no table in the folder {path}; supported are {', '.join(FORMATS)}"
                )
        return files

    def documents(self):
        return (
            Document(place, text)
            for place, (text,) in readers.file_rows(self.files(), [self.field])
        )


class Hub(FileSource):
    """One field of a dataset on the Hugging Face Hub, or in a folder; `streaming` keeps no copy."""

    def __init__(self, id: str, name: str | None, split: str, field: str, revision: str | None,
                 streaming: bool, max_tokens: Count | None):  # fmt: skip
        self.id, self.name, self.split, self.field = id, name, split, field
        self.revision, self.streaming, self.max_tokens = revision, streaming, max_tokens
        self.commit = revision  # digest() resolves it

    @property
    def folder(self):
        """The folder that `id` names, or None."""
        return folder if os.path.isdir(folder := str(expand_user(self.id))) else None

    def files(self):
        return readers.resolve_paths(self.id, None) if self.folder else []

    def digest(self, hashes):
        """Of a folder's files; of a dataset on the hub, its commit: offline, the last that is known."""
        if self.folder:
            return super().digest(hashes)
        import huggingface_hub

        key = f"hub:{self.id}@{self.revision}"
        try:
            self.commit = huggingface_hub.HfApi().dataset_info(self.id, revision=self.revision).sha
            hashes.put(key, self.commit)
        except Exception as error:  # of the network, of many libraries
            if key not in hashes.known:
                raise readers.download_error(self.id, error) from None
            self.commit = hashes.known[key]
        return self.commit

    def documents(self):
        place = self.folder or self.id
        rows = readers.hub_rows(
            place, self.name, self.split, self.commit, self.streaming, [self.field]
        )
        return (Document(place, text) for place, (text,) in rows)


class Shakespeare(FileSource):
    """Tiny Shakespeare, the text of many small benchmarks; downloaded once."""

    def __init__(self, cache):
        self.path = expand_user(cache) / "tinyshakespeare.txt"

    def files(self):
        if not self.path.exists():
            try:
                with urllib.request.urlopen(SHAKESPEARE, timeout=20) as response:
                    text = response.read(SHAKESPEARE_BYTES + 1)
                if hashlib.sha256(text).hexdigest() != SHAKESPEARE_SHA256:
                    raise OSError("the response is not the expected file")
            except OSError as error:
                sentence = f"cannot download {SHAKESPEARE} ({getattr(error, 'reason', error)})"
                raise DataError(f"{sentence}; put a copy of that file at {self.path}") from None
            with disk_errors("cannot write"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                draft = self.path.with_suffix(f".{os.getpid()}")
                draft.write_bytes(text)
                draft.replace(self.path)
        if digest(self.path) != SHAKESPEARE_SHA256:
            raise DataError(f"{self.path} is not the expected file; remove it and run again")
        return [self.path]


class PairTable(FileSource):
    """Two fields of a table. The pairs are (name for error messages, source, target)."""

    input_kind, files = "pairs", Table.files

    def __init__(self, path: str, source: str, target: str, cache):
        if source == target:
            raise ValueError(f"source and target are both {source!r}; name two fields")
        self.path, self.fields, self.cache = path, [source, target], cache

    def pairs(self):
        return ((place, *texts) for place, texts in readers.file_rows(self.files(), self.fields))


class ParallelText(FileSource):
    """Two text files with a source and its target in the same line."""

    input_kind = "pairs"

    def __init__(self, source: str, target: str):
        self.source, self.target = source, target

    def files(self):
        found = [readers.resolve_paths(path, None) for path in (self.source, self.target)]
        for path, files in zip((self.source, self.target), found, strict=True):
            if len(files) != 1:
                raise DataError(f"{path}: expected one file and found {len(files)}")
        return [file for [file] in found]

    def pairs(self):
        source, target = self.files()
        lines = zip_longest(readers.read_lines(source), readers.read_lines(target))
        for number, (left, right) in enumerate(lines, 1):
            if left is None or right is None:
                n, m = (sum(1 for _ in readers.read_lines(path)) for path in (source, target))
                raise DataError(
                    f"{source} has {n} lines and {target} has {m}; they must have equally many"
                )
            yield f"{source}:{number}", left, right


class Docstrings(FileSource):
    """Functions of the standard library without their docstring -> its first line."""

    input_kind, files = "pairs", staticmethod(readers.stdlib_files)

    def pairs(self):
        return (pair for path in self.files() for pair in documented_functions(path))


@cache  # they are read more than once, and parsing takes seconds
def documented_functions(path):
    text, pairs = path.read_text(encoding="utf-8"), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the library's own code
        tree = ast.parse(text)
    lines = text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        summary = (ast.get_docstring(node) or "").split("\n")[0].strip()
        begin, end = node.body[0].lineno, node.body[0].end_lineno
        # a docstring alone, or one that shares a line with code, cannot be cut out
        if summary and len(node.body) > 1 and begin != node.lineno and node.body[1].lineno != end:
            rest = lines[node.lineno - 1 : begin - 1] + lines[end : node.end_lineno]
            pairs.append((f"{path}:{node.lineno}", textwrap.dedent("\n".join(rest)), summary))
    return pairs


def letters(words):
    return "".join(chr(ord("a") + word % 26) for word in words)


def add(first, second):
    a, b = (int("".join(str(word % 10) for word in words)) for words in (first, second))
    return f"{a}+{b}", str(a + b)


TASKS = {  # two lists of random integers -> source, target
    "copy": lambda first, _: (letters(first), letters(first)),
    "reverse": lambda first, _: (letters(first), letters(first)[::-1]),
    "sort": lambda first, _: (letters(first), "".join(sorted(letters(first)))),
    "add": add,
}


class Synthetic(FileSource):
    """Any number of small tasks with one right answer, for demonstrations and tests."""

    input_kind, files = "pairs", staticmethod(list)  # it reads none

    def __init__(self, task: Annotated[str, tuple(TASKS)], size: Annotated[int, Bounds(least=2)],
                 min_length: Count, max_length: Annotated[int, Bounds(most=1000)]):  # fmt: skip
        if max_length < min_length:
            raise ValueError(
                f"max_length is {max_length}; it must be at least min_length, {min_length}"
            )
        self.task, self.size, self.min_length, self.max_length = task, size, min_length, max_length

    def digest(self, hashes):
        return hashlib.sha256(repr(sorted(vars(self).items())).encode()).hexdigest()

    def pairs(self):
        make, longest = TASKS[self.task], self.max_length
        for start in range(0, self.size, 1000):
            row_ids = range(start, min(start + 1000, self.size))
            rows = random_words(
                hash_seed("synthetic", self.task), row_ids, 2 + 2 * longest
            ).tolist()
            for number, (a, b, *words) in zip(row_ids, rows, strict=True):
                n, m = (self.min_length + word % (longest - self.min_length + 1) for word in (a, b))
                yield f"pair {number}", *make(words[:n], words[longest : longest + m])


SOURCES = {"python": Python, "text": Text, "table": Table, "hub": Hub, "shakespeare": Shakespeare}
SOURCES |= {
    "pairs": PairTable,
    "parallel": ParallelText,
    "docstrings": Docstrings,
    "synthetic": Synthetic,
}
