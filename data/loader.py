"""Loaders: the batch of any step. Its examples, and all random draws, are functions of
(seed, step)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import signature
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy import ndarray

from configs.errors import DataError
from data.batch import Batch
from data.shuffle import Drawn, hash_seed, mixed_ids, permutation, random_words
from data.store import TokenFile
from data.tokenizers.tokenizer import Tokenizer


@dataclass
class Loader:
    """Batches of one split."""

    n_too_long = 0  # examples that do not fit in the context
    part: TokenFile
    objective: Any
    tokenizer: Tokenizer
    batch_size: int
    seed: int
    weights: dict[str, float]  # of the sources of a mix; empty for other data, a single source
    drawn: Drawn

    def divide(self, starts: ndarray, lengths: ndarray) -> None:
        """Assign examples, which start at these tokens and have these lengths, to sources."""
        self.n = len(lengths)
        shares = [*self.weights.values()] or [1.0]
        ends = self.part.ends_of_sources
        bounds = [0, *np.searchsorted(starts, ends).tolist()]
        self.ranges = [range(*pair) for pair in pairwise(bounds)]  # of ids
        self.sources = dict(zip(self.weights, self.ranges, strict=False))  # of a mix
        self.mean_lengths = []

        names = [f" of data.sources.{name}" for name in self.weights] or [""]
        sizes = np.diff(ends, prepend=0)
        for name, ids, size in zip(names, self.ranges, sizes, strict=True):
            if not ids:
                hint = "give more text, or change model.context_length or data.val_fraction"
                raise DataError(
                    f"{self.part.split} has {size} tokens{name}, too few for an example; {hint}"
                )
            mine = lengths[ids.start : ids.stop]
            self.mean_lengths.append(mine.mean())

        self.tokens_per_example = np.average(self.mean_lengths, weights=shares)

    def ids(self, positions: ndarray) -> ndarray:
        return mixed_ids(positions, self.ranges, self.drawn, self.seed)

    def tokens_seen(self, step: int) -> dict[str, int]:
        """The tokens of each source of a mix that were seen before a step."""
        counts = self.drawn(step * self.batch_size)
        seen = zip(self.weights, counts, self.mean_lengths, strict=False)
        return {name: round(count * mean) for name, count, mean in seen}

    def evaluation(self, limit: int | None = None, ids: range | None = None) -> Iterator[Batch]:
        """Batches with each example once, or with `limit` fixed examples. ids: only these."""
        ids = ids or range(self.n)
        positions = np.arange(len(ids))[:limit]
        chosen = permutation(positions, len(ids), hash_seed("evaluation"))
        ordered = self.sort(ids.start + np.sort(chosen))
        for start in range(0, len(ordered), self.batch_size):
            stop = start + self.batch_size
            yield self.make(ordered[start:stop])
        if len(positions) == len(ids):
            yield from self.rests(ids)

    def sort(self, ids: ndarray) -> ndarray:
        return ids

    def make(self, ids: ndarray) -> Batch:
        """Make a batch for an evaluation."""
        raise NotImplementedError

    def call_objective(self, *examples: Any, step: int | None = None) -> Batch:
        """Call the objective's batch(), with the step if it has a parameter `step`."""
        build = self.objective.batch
        options = {"step": step} if "step" in signature(build).parameters else {}
        return build(*examples, self.tokenizer, **options)

    def rests(self, ids: range) -> Iterator[Batch]:
        """Batches of what is left after the last example of a source, if it is among the ids."""
        return iter(())

    @property
    def n_tokens(self) -> int:
        """The number of tokens; a conversation stores as many mask values beside its ids."""
        is_chat = self.objective.input_kind == "chat"
        return self.part.n_tokens // 2 if is_chat else self.part.n_tokens


@dataclass
class TokenLoader(Loader):
    """Text as consecutive sequences of equal length, each once per epoch. Each source of a mix
    begins with a new sequence."""

    def __post_init__(self) -> None:
        size = self.objective.seq_len
        width = size + self.objective.lookahead
        parts = []
        for first, stop in pairwise([0, *self.part.ends_of_sources]):
            last = stop - width
            parts.append(np.arange(first, last + 1, size))
        self.starts = np.concatenate(parts)
        self.divide(self.starts, np.broadcast_to(size, len(self.starts)))

    def batch(self, step: int) -> Batch:
        positions = step * self.batch_size + np.arange(self.batch_size)
        starts = self.starts[self.ids(positions)]
        return self.read(starts, self.seed, positions, step=step)

    def widest(self) -> Batch:
        """A batch that needs the most memory. All are alike, except that an objective may make
        shorter ones at some steps; an evaluation has no step, so its batches are full."""
        return self.make(np.arange(self.batch_size) % self.n)

    def read(
        self,
        starts: ndarray,
        seed: int | str,
        numbers: ndarray,
        width: int | None = None,
        step: int | None = None,
    ) -> Batch:
        """Make a batch of rows; the draws for a row depend on its number, not on other rows."""

        def draw(purpose: str, width: int) -> ndarray:
            return random_words(hash_seed("draw", seed, purpose), numbers, width)

        width = width or self.objective.seq_len + self.objective.lookahead
        rows = self.part.windows(starts, width)
        return self.call_objective(rows, draw, step=step)

    def make(self, ids: ndarray) -> Batch:
        return self.read(self.starts[ids], "evaluation", ids)

    def rests(self, ids: range) -> Iterator[Batch]:
        """Yield what is left at the end of a source, as a shorter sequence."""
        for part, stop in zip(self.ranges, self.part.ends_of_sources, strict=True):
            last = part[-1]
            start = self.starts[last] + self.objective.seq_len
            if last in ids and start + 1 < stop:
                number = np.array([self.n])
                yield self.read(np.array([start]), "evaluation", number, stop - start)


def prefetch(
    function: Callable[[Any], Any], items: Iterable, workers: int = 1, ahead: int = 1
) -> Iterator:
    """map(function, items), in threads that are some items ahead."""
    with ThreadPoolExecutor(workers) as threads:
        futures = (threads.submit(function, item) for item in items)  # lazily
        running = deque(islice(futures, ahead))
        while running:
            running.extend(islice(futures, 1))
            yield running.popleft().result()
