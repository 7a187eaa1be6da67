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
from data.objectives import Batch, Draw
from data.shuffle import hash_seed, permutation, random_words, shuffled_ids
from data.store import TokenFile
from data.tokenizers.tokenizer import Tokenizer

SORT_GROUP = 128  # batches of pairs that are sorted by length together
SIMILAR = 8  # tokens: sources whose lengths differ by less are sorted by those of their targets


def row_draw(seed: int | str, row_ids: ndarray) -> Draw:
    """Draws for each row that do not depend on the rows beside it."""
    return lambda purpose, width: random_words(hash_seed("draw", seed, purpose), row_ids, width)


def eval_subset(n: int, limit: int | None) -> ndarray:
    """The ids to evaluate, of n examples: all, or `limit` of them, always the same."""
    count = min(n, limit or n)
    return np.sort(permutation(np.arange(count), n, hash_seed("evaluation")))


@dataclass
class Loader:
    """Batches of one split."""

    part: TokenFile
    objective: Any
    tokenizer: Tokenizer
    batch_size: int
    seed: int

    @property
    def n_tokens(self) -> int:
        """Beside each id of a conversation is one of its mask."""
        return self.part.n_tokens // (2 if self.objective.input_kind == "chat" else 1)

    def eval_batches(self, ids: ndarray) -> list[ndarray]:
        return np.split(ids, range(self.batch_size, len(ids), self.batch_size))


@dataclass
class TokenLoader(Loader):
    """Text as consecutive sequences of equal length, each once per epoch."""

    n_too_long = 0

    def __post_init__(self) -> None:
        self.tokens_per_example = self.objective.seq_len
        self.width = self.objective.seq_len + self.objective.lookahead
        self.n = (self.part.n_tokens - self.objective.lookahead) // self.objective.seq_len

        if self.n < 1:
            sizes = f"{self.part.n_tokens} tokens, and a window needs {self.width}"
            hint = "give more text, lower model.context_length, or change data.val_fraction"
            raise DataError(f"{self.part.split} has {sizes}; {hint}")

    def batch(self, step: int) -> Batch:
        positions = step * self.batch_size + np.arange(self.batch_size)
        ids = shuffled_ids(positions, self.n, self.seed)
        return self.make(ids, self.width, row_draw(self.seed, positions))

    def seq_len(self, step: int) -> int:
        """Tokens per row of a batch."""
        return self.tokens_per_example

    def make(self, ids: ndarray, width: int, draw: Draw) -> Batch:
        rows = self.part.windows(ids * self.objective.seq_len, width)
        return self.objective.batch(rows, draw, self.tokenizer)

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Batches of each sequence once, always with the same draws; the rest of the text is a
        shorter one."""
        subset = eval_subset(self.n, limit)
        for ids in self.eval_batches(subset):
            yield self.make(ids, self.width, row_draw("evaluation", ids))

        rest = self.part.n_tokens - self.n * self.objective.seq_len
        if rest > 1 and len(subset) == self.n:
            ids = np.array([self.n])
            yield self.make(ids, rest, row_draw("evaluation", ids))


@dataclass
class PairLoader(Loader):
    """Pairs, each once per epoch, batched with others of similar length to save padding; or
    conversations, as pairs of ids and mask."""

    def __post_init__(self) -> None:
        starts, lengths = self.part.pairs()
        truncated = self.objective.truncated_lengths(lengths)
        is_too_long = (truncated < lengths).any(1)
        too_long = self.objective.too_long
        used = ~is_too_long | (too_long != "drop")

        if self.objective.input_kind == "chat":  # an answer may be cut off
            for i in np.flatnonzero(is_too_long):
                [mask] = self.part.texts(starts[i, 1:], truncated[i, 1:])
                used[i] &= mask[1:].any()

        self.n_too_long = int(is_too_long.sum())
        self.n = int(used.sum())
        if not self.n or (self.n_too_long and too_long == "error"):
            kind = self.objective.input_kind
            count = f"{self.n_too_long} of {len(lengths)} {self.objective.items}"
            context = f"a context of {self.objective.context_length}"
            truncated = f"objective={kind} objective.too_long=truncate"
            hint = f"raise model.context_length or choose {truncated}"
            raise DataError(f"{count} of {self.part.split} are too long for {context}; {hint}")

        self.starts = starts[used]
        self.lengths = truncated[used]
        self.tokens_per_example = self.objective.widths(self.lengths).sum(1).mean()
        self.group_batches = lru_cache(2)(self.sorted_group)  # consecutive steps share a group

    def batch(self, step: int) -> Batch:
        return self.make(self.batch_ids(step))

    def batch_ids(self, step: int) -> ndarray:
        """SORT_GROUP batches are sorted by length together, then taken in random order."""
        group, turn = divmod(step, SORT_GROUP)
        return self.group_batches(group)[turn]

    def sorted_group(self, group: int) -> ndarray:
        """(batch, pair)"""
        n = SORT_GROUP * self.batch_size
        ids = self.sort(shuffled_ids(group * n + np.arange(n), self.n, self.seed))
        turns = permutation(np.arange(SORT_GROUP), SORT_GROUP, hash_seed("turns", self.seed, group))
        return ids.reshape(SORT_GROUP, self.batch_size)[turns]

    def sort(self, ids: ndarray) -> ndarray:
        """In an order in which neighbors have similar source and target lengths."""
        widths = self.objective.widths(self.lengths[ids])
        return ids[np.lexsort((widths[:, -1], widths[:, 0] // SIMILAR))]

    def seq_len(self, step: int) -> int:
        """Tokens per row of a batch, source and target together."""
        widths = self.objective.widths(self.lengths[self.batch_ids(step)])
        return int(widths.max(0).sum())

    def make(self, ids: ndarray) -> Batch:
        return self.objective.batch(*self.texts(ids), self.tokenizer)

    def texts(self, ids: ndarray) -> list[list[ndarray]]:
        """[sources, targets], or [ids, masks] of conversations"""
        starts, lengths = self.starts[ids], self.lengths[ids]
        return [self.part.texts(starts[:, side], lengths[:, side]) for side in (0, 1)]

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Batches of each pair once."""
        ids = self.sort(eval_subset(self.n, limit))
        return map(self.make, self.eval_batches(ids))


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
