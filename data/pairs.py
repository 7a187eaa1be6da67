"""The loader for pairs and conversations, which differ in length."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy import ndarray

from configs.cli import warn
from configs.errors import DataError
from data.batch import Batch
from data.loader import Loader
from data.shuffle import hash_seed, permutation

SIMILAR = 8  # tokens: sources whose lengths differ by less are sorted by target length


@dataclass
class PairLoader(Loader):
    """Pairs, batched with others of similar length to save padding; or conversations, as pairs of
    ids and mask."""

    def __post_init__(self) -> None:
        starts, lengths = self.file.pairs()
        truncated = self.objective.truncated_lengths(lengths)
        is_too_long = (truncated < lengths).any(1)
        too_long = self.objective.too_long
        kind = self.objective.input_kind

        # beside an answer there is its mask, beside a text its label
        self.n_tokens = (lengths if kind == "pairs" else lengths[:, 0]).sum()
        used = ~is_too_long | (too_long != "drop")

        if kind == "chat":  # its second text is a mask of the answers
            for i in np.flatnonzero(is_too_long):
                mask = self.file.ids(starts[i, 1], truncated[i, 1])
                used[i] &= mask[1:].any()

        if n_too_long := is_too_long.sum():
            count = f"{n_too_long} of {len(lengths)} {self.objective.items}"
            context = f"a context of {self.objective.context_length}"
            problem = f"{count} of {self.file.split} are too long for {context}"

            if too_long == "error" or not used.any():
                name = "classify" if kind == "labels" else kind
                truncate = f"objective={name} objective.too_long=truncate"
                hint = f"choose {truncate}, or raise the model.context_length of a new model"
                raise DataError(f"{problem}; {hint}")

            if kind == "chat":
                problem += f", and {sum(~used)} of these are dropped"
            warn(f"{problem}; objective.too_long is {too_long}")

        self.starts = starts[used]
        self.lengths = truncated[used]
        self.n = len(self.starts)
        self.tokens_per_example = self.objective.widths(self.lengths).sum(1).mean()

    @cached_property
    def group_batches(self) -> Callable[[int, int], ndarray]:
        return lru_cache(1)(self.sorted_group)  # consecutive steps share a group

    def batch(self, step: int) -> Batch:
        return self.read(self.batch_ids(step), step)

    def batch_ids(self, step: int) -> ndarray:
        """Batches are sorted by length in groups, and each group is taken in random order. No group
        crosses the end of an epoch, so that no pair is seen twice before another one is seen; the
        step in which the next epoch begins is a group of its own."""
        epoch = step * self.batch_size // self.n
        first = math.ceil(epoch * self.n / self.batch_size)

        end = (epoch + 1) * self.n // self.batch_size  # the step that runs into the next epoch
        if step == end:
            return self.group_batches(step, 1)[0]

        size = self.objective.sort_group
        group, turn = divmod(step - first, size)
        start = first + group * size
        return self.group_batches(start, min(size, end - start))[turn]

    def sorted_group(self, step: int, n_steps: int) -> ndarray:
        """The ids of a group, (batch, pair)."""
        positions = step * self.batch_size + np.arange(n_steps * self.batch_size)
        ids = self.by_length(self.example_ids(positions))
        turns = permutation(np.arange(n_steps), n_steps, hash_seed("turns", self.seed, step))
        return ids.reshape(n_steps, self.batch_size)[turns]

    def by_length(self, ids: ndarray) -> ndarray:
        """Order ids so that neighbors have similar source and target lengths."""
        widths = self.objective.widths(self.lengths[ids])
        first = widths[:, 0]
        last = widths[:, -1]  # the same, if a pair is one row
        return ids[np.lexsort((last, first // SIMILAR))]

    def widest(self) -> Batch:
        """As many of the longest examples as a batch has. (One with the longest source of one pair
        and the longest target of another may be a bit wider.)"""
        longest = np.argsort(-self.objective.widths(self.lengths).sum(1))
        # without a step, as in an evaluation: an objective may make shorter batches at some steps
        return self.read(np.resize(longest, self.batch_size))

    def read(self, ids: ndarray, step: int | None = None) -> Batch:
        """Make a batch of all first and all second texts of these examples."""
        texts = map(list, zip(*map(self.example, ids), strict=True))
        return self.call_objective(*texts, step=step)

    def example(self, i: int) -> list[ndarray]:
        """[source, target], or [ids, mask] of a conversation."""
        return list(map(self.file.ids, self.starts[i], self.lengths[i]))
