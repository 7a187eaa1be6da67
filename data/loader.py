"""Loaders: the batch of any step. Its examples, and every draw about them, follow from
(seed, step)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy import ndarray

from configs.errors import DataError
from data.objectives import Batch, Draw
from data.shuffle import drawn, hash_seed, mixed_ids, permutation, random_words
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
    weights: dict[str, float] = field(default_factory=dict)  # of the sources of a mix

    def divide(self, ends: ndarray, lengths: ndarray) -> None:
        """The examples among sources: where those of each end, and how many tokens each has."""
        self.n = len(lengths)
        self.ends = ends.tolist()
        self.shares = [*self.weights.values()] or [1.0]
        self.ranges = dict(zip(self.weights or [""], pairwise([0, *self.ends]), strict=True))
        for name, (first, end) in self.ranges.items():
            if first == end:
                hint = "give it more text, or lower model.context_length"
                raise DataError(f"{self.part.split} has nothing of data.sources.{name}; {hint}")
        self.mean_lengths = [lengths[first:end].mean() for first, end in self.ranges.values()]
        self.tokens_per_example = np.average(self.mean_lengths, weights=self.shares)

    def ids(self, positions: ndarray) -> ndarray:
        return mixed_ids(positions, self.ends, self.shares, self.seed)

    def tokens_seen(self, step: int) -> dict[str, int]:
        """Of each source of a mix, before a step."""
        counts = drawn(step * self.batch_size, self.shares)
        tokens = [round(n * mean) for n, mean in zip(counts, self.mean_lengths, strict=True)]
        return dict(zip(self.weights, tokens, strict=False))

    def eval_ids(self, limit: int | None, source: str) -> ndarray:
        """Of all examples, or of a source of a mix."""
        first, end = self.range_of(source)
        return first + eval_subset(end - first, limit)

    def range_of(self, source: str) -> tuple[int, int]:
        return self.ranges.get(source, (0, self.n))

    @property
    def n_tokens(self) -> int:
        """Beside each id of a conversation is one of its mask."""
        return self.part.n_tokens // (2 if self.objective.input_kind == "chat" else 1)

    def eval_batches(self, ids: ndarray) -> list[ndarray]:
        return np.split(ids, range(self.batch_size, len(ids), self.batch_size))


@dataclass
class TokenLoader(Loader):
    """Text as consecutive sequences of equal length, each once per epoch. Each source of a mix
    begins with a new one."""

    n_too_long = 0

    def __post_init__(self) -> None:
        seq_len = self.objective.seq_len
        self.width = seq_len + self.objective.lookahead
        ends = np.array(self.part.ends_of_sources)
        sizes = np.diff(ends, prepend=0)
        counts = (sizes - self.objective.lookahead) // seq_len

        if counts.min() < 1:
            name = f" of data.sources.{[*self.weights][counts.argmin()]}" if self.weights else ""
            size = f"{sizes[counts.argmin()]} tokens{name}, and a window needs {self.width}"
            hint = "give more text, lower model.context_length, or change data.val_fraction"
            raise DataError(f"{self.part.split} has {size}; {hint}")
        self.divide(counts.cumsum(), np.broadcast_to(seq_len, counts.sum()))
        self.rests = sizes - counts * seq_len  # tokens of each source
        self.shifts = ends - self.rests - counts.cumsum() * seq_len

    def starts(self, ids: ndarray) -> ndarray:
        """The first token of each sequence."""
        sources = np.searchsorted(self.ends, ids, "right")
        return ids * self.objective.seq_len + self.shifts[sources]

    def batch(self, step: int) -> Batch:
        positions = step * self.batch_size + np.arange(self.batch_size)
        starts = self.starts(self.ids(positions))
        return self.make(starts, self.width, row_draw(self.seed, positions))

    def seq_len(self, step: int) -> int:
        """Tokens per row of a batch."""
        return self.objective.seq_len

    def make(self, starts: ndarray, width: int, draw: Draw) -> Batch:
        rows = self.part.windows(starts, width)
        return self.objective.batch(rows, draw, self.tokenizer)

    def evaluation(self, limit: int | None = None, source: str = "") -> Iterator[Batch]:
        """Batches of each sequence once, always with the same draws; the rest of a text is a
        shorter one."""
        subset = self.eval_ids(limit, source)
        for batch_ids in self.eval_batches(subset):
            draw = row_draw("evaluation", batch_ids)
            yield self.make(self.starts(batch_ids), self.width, draw)

        first, end = self.range_of(source)
        if len(subset) == end - first:
            ends = self.part.ends_of_sources
            for name, stop, rest in zip(self.ranges, ends, self.rests, strict=True):
                if rest > 1 and source in ("", name):
                    draw = row_draw("evaluation", np.array([self.n]))
                    yield self.make(np.array([stop - rest]), rest, draw)


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
            hint = f"choose {truncated}, or raise the model.context_length of a new model"
            raise DataError(f"{count} of {self.part.split} are too long for {context}; {hint}")

        self.starts = starts[used]
        self.lengths = truncated[used]
        counts = np.searchsorted(self.part.ends[1::2], self.part.ends_of_sources, "right")
        widths = self.objective.widths(self.lengths)
        self.divide(np.append(0, used.cumsum())[counts], widths.sum(1))
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
        ids = self.sort(self.ids(group * n + np.arange(n)))
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

    def evaluation(self, limit: int | None = None, source: str = "") -> Iterator[Batch]:
        """Batches of each pair once."""
        ids = self.sort(self.eval_ids(limit, source))
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
