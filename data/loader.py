"""Loaders: the batch of any step. Its examples, and all random draws, are functions of
(seed, step)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
from numpy import ndarray

from configs.errors import DataError
from data.batch import Batch
from data.shuffle import hash_seed, permutation, random_words, shuffled_ids
from data.store import TokenFile
from data.tokenizers.tokenizer import Tokenizer


@dataclass
class Loader:
    """Batches of one split."""

    file: TokenFile
    objective: Any
    tokenizer: Tokenizer
    batch_size: int
    seed: Any  # an integer; of a source in a mix, with its name
    n = 0  # examples; __post_init__ sets it (without an annotation, it is no field)

    def example_ids(self, positions: ndarray) -> ndarray:
        """The examples at these positions of training, which takes each once per epoch."""
        return shuffled_ids(positions, self.n, self.seed)

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Batches with each example once, or with `limit` fixed examples."""
        # a random subset, read in the order of the text
        positions = np.arange(self.n)[:limit]
        chosen = permutation(positions, self.n, hash_seed("evaluation"))
        ids = self.by_length(np.sort(chosen))

        for start in range(0, len(ids), self.batch_size):
            yield self.read(ids[start : start + self.batch_size])

    def by_length(self, ids: ndarray) -> ndarray:
        return ids  # all sequences of a text have the same length

    def read(self, ids: ndarray) -> Batch:
        """Make a batch of these examples; without a step, as in an evaluation."""
        raise NotImplementedError

    def tokens_seen(self, step: int) -> dict[str, int]:
        """The tokens of each source of a mix that were seen before a step."""
        return {}

    def call_objective(self, *inputs: Any, step: int | None = None) -> Batch:
        """Call the objective's batch(), with the step if it has a parameter `step`."""
        make = self.objective.batch
        options = {"step": step} if "step" in signature(make).parameters else {}
        return make(*inputs, self.tokenizer, **options)


@dataclass
class TokenLoader(Loader):
    """Text as consecutive sequences of equal length."""

    def __post_init__(self) -> None:
        self.tokens_per_example = self.objective.seq_len
        n_tokens = self.n_tokens = self.file.n_tokens
        self.n = (n_tokens - self.objective.lookahead) // self.tokens_per_example
        if self.n < 1:
            hint = "give more text, or change model.context_length or data.val_fraction"
            raise DataError(
                f"{self.file.split} has {n_tokens} tokens, too few for an example; {hint}"
            )

    def batch(self, step: int) -> Batch:
        positions = step * self.batch_size + np.arange(self.batch_size)
        return self.read(self.example_ids(positions), positions, step)

    def read(
        self, ids: ndarray, positions: ndarray | None = None, step: int | None = None
    ) -> Batch:
        """Make a batch. The draws for a row depend on its position in training or, in an evaluation,
        on its id; never on other rows."""
        seed, keys = ("evaluation", ids) if positions is None else (self.seed, positions)

        def draw(purpose: str, width: int) -> ndarray:
            return random_words(hash_seed("draw", seed, purpose), keys, width)

        rows = np.stack([self.example(i) for i in ids])
        return self.call_objective(rows, draw, step=step)

    def example(self, i: int) -> ndarray:
        """The tokens of a row, and those that it only predicts."""
        size = self.objective.seq_len
        return self.file.ids(i * size, size + self.objective.lookahead)

    def widest(self) -> Batch:
        """A batch that needs the most memory. All are alike, except that an objective may make
        shorter ones at some steps; an evaluation has no step, so its batches are full."""
        return self.read(self.example_ids(np.arange(self.batch_size)))

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Ends with a shorter example, the tokens that are left after the last, unless there is a
        limit."""
        yield from super().evaluation(limit)
        is_all = limit is None or limit >= self.n
        if is_all and self.file.n_tokens - self.n * self.objective.seq_len > 1:
            yield self.read(np.array([self.n]))


def prefetch(function: Callable, items: Iterable, workers: int = 1, ahead: int = 1) -> Iterator:
    """map(function, items), in threads that are some items ahead."""
    with ThreadPoolExecutor(workers) as threads:
        futures = (threads.submit(function, item) for item in items)  # each once islice takes it
        running = deque(islice(futures, ahead))

        while running:
            running.extend(islice(futures, 1))
            yield running.popleft().result()
