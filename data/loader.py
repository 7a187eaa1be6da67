"""Loaders: the batch of any step. Its examples, and every draw about them, follow from
(seed, step)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from configs.errors import DataError
from configs.registry import Registry
from data.batch import Batch
from data.objectives import Draw
from data.shuffle import hash_seed, permutation, random_words, shuffled_ids
from data.store import TokenFile
from data.tokenizers.tokenizer import Tokenizer


@dataclass(kw_only=True)
class Loader:
    """Batches of one split. A subclass sets n, the number of examples, and the
    other numbers."""

    order = ""  # a version of the order of examples: a run keeps to its own
    n = 0
    n_tokens = 0
    n_too_long = 0  # examples that do not fit in the context
    tokens_per_example = 0.0
    objective: Any
    tokenizer: Tokenizer
    batch_size: int
    seed: object

    @property
    def sources(self) -> dict[str, Any]:
        """By name, if there are several."""
        return {"": self}

    def tokens_seen(self, step: int) -> dict[str, int]:
        """Of each source of a mix, before a step."""
        return {}

    def batch(self, step: int) -> Batch:
        raise NotImplementedError

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Batches of each example once, or of `limit` of them, always the same."""
        positions = np.arange(self.n)[:limit]
        chosen = permutation(positions, self.n, hash_seed("evaluation"))
        ordered = self.sort(np.sort(chosen))

        for start in range(0, len(ordered), self.batch_size):
            stop = start + self.batch_size
            yield self.read(ordered[start:stop])

    def sort(self, ids: ndarray) -> ndarray:
        return ids

    def read(self, ids: ndarray) -> Batch:
        """A batch of an evaluation."""
        raise NotImplementedError

    def widest(self) -> Batch:
        """The largest batch, or nearly so: any other fits in memory if this one does."""
        return self.read(np.arange(self.batch_size) % self.n)

    def make(self, *examples: Any, step: int | None = None) -> Batch:
        """An objective gets the step if its batch() has a parameter of this name."""
        build = self.objective.batch
        options = {"step": step} if "step" in signature(build).parameters else {}
        return build(*examples, self.tokenizer, **options)


@dataclass(kw_only=True)
class TokenLoader(Loader):
    """Text as consecutive sequences of equal length, each once per epoch."""

    part: TokenFile

    def __post_init__(self) -> None:
        size = self.objective.seq_len
        self.n_tokens = self.part.n_tokens
        self.n = (self.n_tokens - self.objective.lookahead) // size
        self.tokens_per_example = size
        if self.n < 1:
            raise DataError(
                f"{self.part.split} has {self.n_tokens} tokens, too few for an example; "
                "give more text, or change model.context_length or data.val_fraction"
            )

    def batch(self, step: int) -> Batch:
        positions = step * self.batch_size + np.arange(self.batch_size)
        return self.make(self.rows(positions), draw_for(positions, self.seed), step=step)

    def rows(self, positions: ndarray) -> ndarray:
        """The sequences at these positions of the endless stream of epochs."""
        return self.sequences(shuffled_ids(positions, self.n, self.seed))

    def sequences(self, ids: ndarray) -> ndarray:
        size = self.objective.seq_len
        places = ids[:, None] * size + np.arange(size + self.objective.lookahead)
        return self.part.tokens[places].astype(np.int64)

    def read(self, ids: ndarray) -> Batch:
        return self.make(self.sequences(ids), draw_for(ids, "evaluation"))

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """The last tokens, if there is no limit, are a shorter sequence."""
        yield from super().evaluation(limit)
        last = self.part.tokens[self.n * self.objective.seq_len :].astype(np.int64)
        if len(last) > 1 and (limit or self.n) >= self.n:
            yield self.make(last[None], draw_for(np.array([self.n]), "evaluation"))


def draw_for(numbers: ndarray, seed: object) -> Draw:
    """Draws for a row depend on its number, not on the rows beside it."""

    def draw(purpose: str, width: int) -> ndarray:
        return random_words(hash_seed("draw", seed, purpose), numbers, width)

    return draw


LOADERS: Registry[Any] = Registry(
    text=TokenLoader,
    pairs="data.pairs:PairLoader",
    chat="data.pairs:PairLoader",
)


class Loaders(NamedTuple):
    objective: Any
    content_hash: str  # of the tokens, the tokenizer and all options
    folder: Path  # of the cache
    tokenizer: Tokenizer
    train: Loader
    validation: Loader

    @property
    def dataset(self) -> str:
        """What a resumed run must find unchanged: the tokens and their order."""
        return f"{self.content_hash} {self.train.order}".strip()


def prefetch(
    function: Callable[[Any], Any], items: Iterable, workers: int = 1, ahead: int = 1
) -> Iterator:
    """map(function, items), in threads that are some items ahead."""
    with ThreadPoolExecutor(workers) as threads:
        futures = (threads.submit(function, item) for item in items)  # once they are asked for
        running = deque(islice(futures, ahead))
        while running:
            running.extend(islice(futures, 1))
            yield running.popleft().result()
