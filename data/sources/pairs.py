"""Sources of pairs of source and target: two files, docstrings, and strings to reverse."""

import ast
import random
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Literal

from configs.cli import expand_user
from configs.errors import DataError
from configs.registry import Bounds, Count
from data.readers import read_lines
from data.sources.files import check_encoding
from data.sources.source import Document, Python, Source


@dataclass
class ParallelText(Source):
    """Two text files with a source and its target in the same line."""

    input_kind = "pairs"
    source: str
    target: str
    encoding: str = "utf-8"
    on_error: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)

    def files(self) -> list[Path]:
        return [expand_user(self.source), expand_user(self.target)]

    def documents(self) -> Iterator[Document]:
        source, target = self.files()
        lines = zip_longest(read_lines(source, self.encoding), read_lines(target, self.encoding))
        for number, texts in enumerate(lines, 1):
            if None in texts:
                reason = f"only one of them has a line {number}"
                raise DataError(f"{source} and {target} need equally many lines; {reason}")
            yield Document(f"{source} and {target}, line {number}", texts)


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
