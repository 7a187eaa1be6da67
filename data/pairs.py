"""Sources of pairs: a source text, and the target that is to be made of it."""

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
    """Two fields of a table's rows: jsonl, json, csv, tsv, parquet."""

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
    """Two text files, a source and its target in each line."""

    input_kind = "pairs"

    def __init__(self, source: str, target: str):
        self.source, self.target = source, target

    def files(self):
        return [one_file("source", self.source), one_file("target", self.target)]

    def pairs(self):
        source, target = self.files()
        lines = zip_longest(read_lines(source), read_lines(target))
        for number, (left, right) in enumerate(lines, 1):
            if left is None or right is None:
                n = [sum(1 for _ in read_lines(path)) for path in (source, target)]
                raise DataError(f"{source} has {n[0]} lines and {target} has {n[1]}; each needs its partner")
            yield Pair(f"{source}:{number}", left, right)


def one_file(name, path):
    files = resolve_paths(path, None)
    if len(files) != 1:
        raise DataError(f"data.{name} is {path}: expected one file and found {len(files)}")
    return files[0]


class Docstrings(FileSource):
    """Functions of the standard library without their docstring, and its first line."""

    input_kind = "pairs"

    def files(self):
        return stdlib_files()

    def pairs(self):
        return (pair for path in self.files() for pair in functions_of(path))


@cache  # they are read more than once, and parsing takes seconds
def functions_of(path):
    """The documented functions of a file, as pairs."""
    text = path.read_text(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of the library's own style
        tree = ast.parse(text)
    lines = text.split("\n")
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    found = ((node.lineno, documented(node, lines)) for node in functions)
    return [Pair(f"{path}:{line}", *texts) for line, texts in found if texts]


def documented(node, lines):
    """(source, target), where a function has a docstring and more than that."""
    first_line = (ast.get_docstring(node) or "").split("\n")[0].strip()
    begin, after = node.body[0].lineno, node.body[0].end_lineno
    if not first_line or len(node.body) == 1 or begin == node.lineno or node.body[1].lineno == after:
        return None
    rest = lines[node.lineno - 1 : begin - 1] + lines[after : node.end_lineno]
    return textwrap.dedent("\n".join(rest)), first_line


class Synthetic:
    """Small tasks with one right answer, in any number: for demonstrations and tests."""

    input_kind, max_tokens = "pairs", None

    def __init__(self, task: str, size: Annotated[int, Bounds(least=2)], min_length: int, max_length: int):
        if task not in TASKS:
            raise ValueError(f"task is {task!r}; choose one of: {', '.join(TASKS)}")
        if not 1 <= min_length <= max_length <= 1000:
            raise ValueError(
                f"min_length is {min_length}, max_length is {max_length}; expected "
                "1 <= min_length <= max_length <= 1000"
            )
        self.task, self.size, self.min_length, self.max_length = task, size, min_length, max_length

    def digest(self, fingerprints):
        return hashlib.sha256(repr(sorted(vars(self).items())).encode()).hexdigest()

    def stamp(self):
        return None

    def n_bytes(self):
        return None

    def pairs(self):
        make = TASKS[self.task]
        for start in range(0, self.size, 1000):
            numbers = range(start, min(start + 1000, self.size))
            words = random_words(hash_seed("synthetic", self.task), numbers, 2 + 2 * self.max_length)
            for number, row in zip(numbers, words.tolist(), strict=True):
                yield Pair(f"pair {number}", *make(self.strings(row)))

    def strings(self, words):
        """Two lists of random words, of random lengths."""
        choices = self.max_length - self.min_length + 1
        first, second = (self.min_length + word % choices for word in words[:2])
        return words[2 : 2 + first], words[2 + self.max_length : 2 + self.max_length + second]


def letters(words):
    return "".join(chr(ord("a") + word % 26) for word in words)


def digits(words):
    return int("".join(str(word % 10) for word in words))


def copy(lists):
    return letters(lists[0]), letters(lists[0])


def reverse(lists):
    return letters(lists[0]), letters(lists[0])[::-1]


def sort(lists):
    return letters(lists[0]), "".join(sorted(letters(lists[0])))


def add(lists):
    a, b = map(digits, lists)
    return f"{a}+{b}", str(a + b)


TASKS = {"copy": copy, "reverse": reverse, "sort": sort, "add": add}
