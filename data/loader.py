"""Loaders: the batch of any step. Its examples, and every draw about them, follow from
(seed, step)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy import ndarray

from configs.errors import DataError
from data.objectives import Batch, Draw, rank_slice
from data.shuffle import hash_seed, permutation, random_words, shuffled_ids
from data.store import TokenFile
from data.tokenizers.tokenizer import Tokenizer

SORT_GROUP = 128  # batches of pairs that are sorted together by source length,
SUBGROUP = 2  # then this many at a time by target length


def row_draw(seed: int | str, row_ids: ndarray) -> Draw:
    """Draws for each row that do not depend on the rows beside it."""
    return lambda purpose, width: random_words(hash_seed("draw", seed, purpose), row_ids, width)


def eval_subset(n: int, limit: int | None) -> ndarray:
    """The ids to evaluate, of n examples: all, or `limit` of them, always the same."""
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(permutation(np.arange(limit), n, hash_seed("evaluation")))


@dataclass
class Loader:
    """Batches of one split."""

    part: TokenFile
    objective: Any
    tokenizer: Tokenizer
    batch_size: int
    seed: int

    def positions(self, step: int) -> ndarray:
        """Of the rows of a batch, counted from step 0."""
        return step * self.batch_size + np.arange(self.batch_size)


@dataclass
class TokenLoader(Loader):
    """Text as consecutive sequences of equal length, each once per epoch."""

    n_too_long = 0

    def __post_init__(self) -> None:
        length = self.objective.seq_len
        lookahead = self.objective.lookahead

        self.tokens_per_example = length
        self.n = (self.part.n_tokens - lookahead) // length

        if self.n < 1:
            sizes = f"{self.part.n_tokens} tokens, and a window needs {length + lookahead}"
            hint = "give more text or lower model.context_length"
            raise DataError(f"{self.part.split} has {sizes}; {hint}")

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        rows = rank_slice(self.batch_size, rank, world_size)
        draw = row_draw(self.seed, self.positions(step)[rows])
        return self.make(self.example_ids(step)[rows], draw)

    def example_ids(self, step: int) -> ndarray:
        return shuffled_ids(self.positions(step), self.n, self.seed)

    def seq_len(self, step: int) -> int:
        """Tokens per row of a batch."""
        return self.tokens_per_example

    def make(self, ids: ndarray, draw: Draw) -> Batch:
        length = self.objective.seq_len
        rows = self.part.windows(ids * length, length + self.objective.lookahead)
        return self.objective.batch(rows, draw, self.tokenizer)

    def evaluation(
        self, limit: int | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Batches of each sequence once, always with the same draws; the rest of the text is a
        shorter one."""
        ids = eval_subset(self.n, limit)
        starts = range(0, len(ids), self.batch_size)

        for start in starts[rank::world_size]:
            batch = ids[start : start + self.batch_size]
            yield self.make(batch, row_draw("evaluation", batch))

        end = self.n * self.objective.seq_len
        rest = self.part.n_tokens - end

        if len(ids) == self.n and rest > 1 and len(starts) % world_size == rank:
            row = self.part.windows(np.array([end]), rest)
            draw = row_draw("evaluation", np.array([self.n]))
            yield self.objective.batch(row, draw, self.tokenizer)


@dataclass
class PairLoader(Loader):
    """Pairs, each once per epoch, batched with others of similar length to save padding."""

    def __post_init__(self) -> None:
        lengths = self.part.lengths()
        truncated = self.objective.truncated_lengths(lengths)
        is_too_long = (truncated < lengths).any(1)
        self.n_too_long = int(is_too_long.sum())
        too_long = self.objective.too_long

        self.pairs = np.flatnonzero(~is_too_long | (too_long != "drop"))
        self.n = len(self.pairs)

        if not self.n or (self.n_too_long and too_long == "error"):
            pairs = f"{self.n_too_long} of {len(lengths)} pairs of {self.part.split}"
            context = f"a context of {self.objective.context_length}"
            hint = "raise model.context_length or choose objective.too_long=truncate"
            raise DataError(f"{pairs} are too long for {context}; {hint}")

        self.lengths = truncated[self.pairs]
        self.widths = self.objective.widths(self.lengths)
        self.tokens_per_example = self.lengths.sum(1).mean()
        self.group_ids = lru_cache(2)(self.sorted_group)  # consecutive steps share a group

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        return self.make(self.example_ids(step), rank_slice(self.batch_size, rank, world_size))

    def example_ids(self, step: int) -> ndarray:
        """SORT_GROUP batches are sorted by length together, then taken in random order."""
        group, turn = divmod(step, SORT_GROUP)
        [i] = permutation([turn], SORT_GROUP, hash_seed("turns", self.seed, group))
        return self.group_ids(group)[i]

    def sorted_group(self, group: int) -> ndarray:
        """(batch, pair)"""
        n = SORT_GROUP * self.batch_size
        ids = self.sort(shuffled_ids(group * n + np.arange(n), self.n, self.seed))
        return ids.reshape(SORT_GROUP, self.batch_size)

    def sort(self, ids: ndarray) -> ndarray:
        """In an order in which neighbors have similar source and target lengths."""
        subgroup = np.arange(len(ids)) // (SUBGROUP * self.batch_size)
        ids = ids[np.lexsort(self.widths[ids].T[::-1])]
        return ids[np.lexsort((self.widths[ids, -1], subgroup))]

    def seq_len(self, step: int) -> int:
        """Tokens per row of a batch, source and target together."""
        return int(self.widths[self.example_ids(step)].max(0).sum())

    def make(self, ids: ndarray, rows: slice = slice(None)) -> Batch:
        """Some rows of a batch, padded to the longest of all."""
        pairs = self.pairs[ids[rows]]
        sources = self.part.texts(2 * pairs)
        targets = self.part.texts(2 * pairs + 1)

        end = self.tokenizer.specials["end"]

        for i, (n, m) in enumerate(self.lengths[ids[rows]]):
            sources[i] = sources[i][:n]
            targets[i] = np.append(targets[i], end)[: m + 1]

        return self.objective.batch(sources, targets, self.widths[ids].max(0), self.tokenizer)

    def evaluation(
        self, limit: int | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Batches of each pair once."""
        ids = self.sort(eval_subset(self.n, limit))
        batches = np.split(ids, range(self.batch_size, len(ids), self.batch_size))
        yield from map(self.make, batches[rank::world_size])


def map_ahead(function: Callable, items: Iterable, workers: int, ahead: int) -> Iterator:
    """map(function, items), in threads that are some items ahead."""
    with ThreadPoolExecutor(workers) as threads:
        futures = (threads.submit(function, item) for item in items)
        running = deque(islice(futures, ahead))
        while running:
            running.extend(islice(futures, 1))
            yield running.popleft().result()


def prefetch(
    batch: Callable[[int], Batch], steps: Iterable[int], pin: bool = False
) -> Iterator[Batch]:
    """batch(step) for each step, one step ahead in a thread; `pin` for fast copies to a GPU."""

    def make(step: int) -> Batch:
        return batch(step).pinned() if pin else batch(step)

    return map_ahead(make, steps, workers=1, ahead=1)
