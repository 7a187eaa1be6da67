"""Sources of pairs: a source text and the target to generate from it."""

import ast
import hashlib
import textwrap
import warnings
from functools import cache
from itertools import zip_longest
from typing import Annotated, NamedTuple

from configs.errors import DataError
from configs.registry import Bounds
from data.files import FileSource, resolve_paths, stdlib_files
from data.readers import file_rows, read_lines, table_files
from data.shuffle import hash_seed, random_words


class Pair(NamedTuple):
    """A name for error messages, and both texts."""

    name: str
    source: str
    target: str


class PairTable(FileSource):
    """Two fields of a table: jsonl, json, csv, tsv, parquet."""

    input_kind = "pairs"

    def __init__(self, path: str, source: str, target: str, cache):
        if source == target:
            raise ValueError(f"source and target are both {source!r}; name two fields")
        self.path, self.fields, self.cache = path, [source, target], cache

    def files(self):
        return table_files(self.path, self.cache)

    def pairs(self):
        for place, texts in file_rows(self.files(), self.fields):
            yield Pair(place, *texts)


class ParallelText(FileSource):
    """Two text files with a source and its target in the same line."""

    input_kind = "pairs"

    def __init__(self, source: str, target: str):
        self.source, self.target = source, target

    def files(self):
        found = [resolve_paths(path, None) for path in (self.source, self.target)]
        for path, files in zip((self.source, self.target), found, strict=True):
            if len(files) != 1:
                raise DataError(f"{path}: expected one file and found {len(files)}")
        return [file for [file] in found]

    def pairs(self):
        source, target = self.files()
        lines = zip_longest(read_lines(source), read_lines(target))
        for number, (left, right) in enumerate(lines, 1):
            if left is None or right is None:
                n, m = (sum(1 for _ in read_lines(path)) for path in (source, target))
                raise DataError(f"{source} has {n} lines and {target} has {m}; they must have equally many")
            yield Pair(f"{source}:{number}", left, right)


class Docstrings(FileSource):
    """Functions of the standard library without their docstring -> its first line."""

    input_kind, files = "pairs", staticmethod(stdlib_files)

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
            pairs.append(Pair(f"{path}:{node.lineno}", textwrap.dedent("\n".join(rest)), summary))
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
                 min_length: int, max_length: int):  # fmt: skip
        if not 1 <= min_length <= max_length <= 1000:
            lengths = f"min_length is {min_length}, max_length is {max_length}"
            raise ValueError(f"{lengths}; expected 1 <= min_length <= max_length <= 1000")
        self.task, self.size, self.min_length, self.max_length = task, size, min_length, max_length

    def digest(self, hashes):
        return hashlib.sha256(repr(sorted(vars(self).items())).encode()).hexdigest()

    def pairs(self):
        make, longest = TASKS[self.task], self.max_length
        for start in range(0, self.size, 1000):
            row_ids = range(start, min(start + 1000, self.size))
            rows = random_words(hash_seed("synthetic", self.task), row_ids, 2 + 2 * longest).tolist()
            for number, (a, b, *words) in zip(row_ids, rows, strict=True):
                n, m = (self.min_length + word % (longest - self.min_length + 1) for word in (a, b))
                yield Pair(f"pair {number}", *make(words[:n], words[longest : longest + m]))
