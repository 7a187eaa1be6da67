"""Source of pairs that needs no file: strings to reverse."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Annotated

from configs.registry import Bounds, Count
from data.sources.source import Document, Source


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
