"""Pairs, or conversations as pairs of ids and mask, in batches of similar lengths to save padding."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy import ndarray

from configs.errors import DataError
from data.batch import Batch
from data.loader import Loader
from data.shuffle import hash_seed, permutation, shuffled_ids
from data.store import TokenFile

SORT_GROUP = 128  # batches that are sorted by length together, at most
SIMILAR = 8  # tokens: sources whose lengths differ by less are sorted by those of their targets


@dataclass
class BatchSampler:
    """Which pairs a step takes. Groups of steps are sorted by length together, and their batches are
    taken in random order. No group goes beyond an epoch, so that no pair is seen twice before another
    one; the step in which the next epoch begins is a group of its own."""

    ids: Callable[[ndarray], ndarray]  # at positions of the endless stream of epochs
    widths: ndarray  # (pair, row): the tokens of the one or two rows that each becomes
    batch_size: int
    seed: object

    def __post_init__(self) -> None:
        self.sorted_group = lru_cache(1)(self.sort_group)  # which consecutive steps share

    def batch(self, step: int) -> ndarray:
        n = len(self.widths)
        epoch = step * self.batch_size // n
        first = math.ceil(epoch * n / self.batch_size)
        end = (epoch + 1) * n // self.batch_size  # the step that goes on into the next epoch
        if step == end:
            return self.sorted_group(step, 1)[0]

        number, turn = divmod(step - first, SORT_GROUP)
        start = first + number * SORT_GROUP
        return self.sorted_group(start, min(SORT_GROUP, end - start))[turn]

    def sort_group(self, step: int, n_steps: int) -> ndarray:
        """(batch, pair)"""
        positions = step * self.batch_size + np.arange(n_steps * self.batch_size)
        ordered = sort_by_length(self.ids(positions), self.widths)

        turns = permutation(np.arange(n_steps), n_steps, hash_seed("turns", self.seed, step))
        return ordered.reshape(n_steps, self.batch_size)[turns]


def sort_by_length(ids: ndarray, widths: ndarray) -> ndarray:
    """In an order in which neighbors have similar source and target lengths."""
    rows = widths[ids]
    return ids[np.lexsort((rows[:, -1], rows[:, 0] // SIMILAR))]  # the same, if it is one row


@dataclass(kw_only=True)
class PairLoader(Loader):
    """Each pair once per epoch."""

    order = "pairs-2"
    part: TokenFile

    def __post_init__(self) -> None:
        starts, lengths = self.part.pairs()
        truncated = self.objective.truncated_lengths(lengths)
        is_too_long = (truncated < lengths).any(1)
        too_long = self.objective.too_long
        used = ~is_too_long | (too_long != "drop")

        self.n_tokens = self.part.n_tokens
        if self.objective.input_kind == "chat":  # its second text is a mask of the answers
            self.n_tokens //= 2
            for i in np.flatnonzero(is_too_long):
                _, mask = self.part.texts(starts[i], truncated[i])
                used[i] &= mask[1:].any()

        self.n_too_long = int(is_too_long.sum())
        if not used.any() or (self.n_too_long and too_long == "error"):
            raise DataError(
                f"{self.n_too_long} of {len(lengths)} {self.objective.items} of {self.part.split} are "
                f"too long for a context of {self.objective.context_length}; choose "
                f"objective={self.objective.input_kind} objective.too_long=truncate, or raise the "
                "model.context_length of a new model"
            )

        self.starts = starts[used]
        self.lengths = truncated[used]
        self.n = len(self.lengths)
        self.widths = self.objective.widths(self.lengths)
        self.tokens_per_example = self.widths.sum(1).mean()
        self.sampler = BatchSampler(self.ids, self.widths, self.batch_size, self.seed)

    def batch(self, step: int) -> Batch:
        return self.make(*self.texts(self.sampler.batch(step)), step=step)

    def ids(self, positions: ndarray) -> ndarray:
        return shuffled_ids(positions, self.n, self.seed)

    def texts(self, ids: ndarray) -> list[list[ndarray]]:
        """[sources, targets], or [ids, masks] of conversations"""
        pairs = map(self.pair, ids)
        return [list(side) for side in zip(*pairs, strict=True)]

    def pair(self, i: int) -> list[ndarray]:
        return self.part.texts(self.starts[i], self.lengths[i])

    def sort(self, ids: ndarray) -> ndarray:
        return sort_by_length(ids, self.widths)

    def read(self, ids: ndarray) -> Batch:
        return self.make(*self.texts(ids))

    def widest(self) -> Batch:
        longest = np.argsort(self.widths.sum(1))[-self.batch_size :]
        return self.read(np.resize(longest, self.batch_size))
