"""The loader for pairs and conversations: they differ in length, so batches are made of similar
ones."""

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
    """Examples of two texts: source and target, text and label, or a conversation and the mask of
    its answers. Batching those of similar length saves padding."""

    def __post_init__(self) -> None:
        self.starts, lengths = self.file.pairs()
        # a label or a mask adds no tokens
        tokens = lengths if self.objective.input_kind == "pairs" else lengths[:, 0]
        self.n_tokens = tokens.sum()

        self.lengths = self.objective.truncated_lengths(lengths)
        is_too_long = (self.lengths < lengths).any(1)
        if is_too_long.any():
            used = self.choose(is_too_long)
            self.starts = self.starts[used]
            self.lengths = self.lengths[used]
        self.n = len(self.starts)
        self.widths = self.objective.widths(self.lengths)
        self.tokens_per_example = self.widths.sum(1).mean()

    def choose(self, is_too_long: ndarray) -> ndarray:
        """Which examples are used if some are too long; with a warning, or an error."""
        kind = self.objective.input_kind
        too_long = self.objective.too_long
        used = ~is_too_long | (too_long != "drop")
        if kind == "chat":  # what is left of a conversation must have a token to predict
            for i in np.flatnonzero(is_too_long).tolist():
                _, mask = self.example(i)
                used[i] &= mask[1:].any()

        problem = (
            f"{is_too_long.sum()} of {len(is_too_long)} {self.objective.items} of "
            f"{self.file.split} are too long for a context of {self.objective.context_length}"
        )
        if too_long == "error" or not used.any():
            raise DataError(
                f"{problem}; choose objective={kind.replace('labels', 'classify')} "
                "objective.too_long=truncate, or raise the model.context_length of a new model"
            )

        if kind == "chat":
            problem += f", and {sum(~used)} of these are dropped"
        warn(f"{problem}; objective.too_long is {too_long}")
        return used

    def batch(self, step: int) -> Batch:
        return self.read(self.batch_ids(step), step)

    def batch_ids(self, step: int) -> ndarray:
        """Batches are sorted by length in groups, and each group is taken in random order. No group
        crosses the end of an epoch, so that no pair is seen twice before another one is seen; the
        step in which the next epoch begins is a group of its own."""
        epoch = step * self.batch_size // self.n
        first = math.ceil(epoch * self.n / self.batch_size)  # the first step within the epoch
        end = (epoch + 1) * self.n // self.batch_size  # the step that runs into the next epoch
        if step == end:
            return self.group(step, 1)[0]

        size = self.objective.sort_group
        turn = (step - first) % size
        start = step - turn
        return self.group(start, min(size, end - start))[turn]

    @cached_property
    def group(self) -> Callable:
        """make_group(), called once for all steps of a group, which follow one another."""
        return lru_cache(1)(self.make_group)

    def make_group(self, start: int, n_steps: int) -> ndarray:
        """The ids of the batches of a group, (batch, pair), in the order of their steps."""
        positions = start * self.batch_size + np.arange(n_steps * self.batch_size)
        ids = self.by_length(self.example_ids(positions))
        turns = permutation(np.arange(n_steps), n_steps, hash_seed("turns", self.seed, start))
        return ids.reshape(n_steps, self.batch_size)[turns]

    def by_length(self, ids: ndarray) -> ndarray:
        """Order ids so that neighbors have similar source and target lengths."""
        widths = self.widths[ids]
        # by its first row, then by its last one, which may be the same
        return ids[np.lexsort((widths[:, -1], widths[:, 0] // SIMILAR))]

    def widest(self) -> Batch:
        """As many of the longest examples as a batch has. (One with the longest source of one pair
        and the longest target of another may be a bit wider.)"""
        longest = np.argsort(-self.widths.sum(1))
        # without a step, as in an evaluation: an objective may make shorter batches at some steps
        return self.read(np.resize(longest, self.batch_size))

    def read(self, ids: ndarray, step: int | None = None) -> Batch:
        """Make a batch of all first and all second texts of these examples."""
        firsts, seconds = zip(*map(self.example, ids), strict=True)
        return self.call_objective(list(firsts), list(seconds), step=step)

    def example(self, i: int) -> list[ndarray]:
        """The ids of the first text; those of the second, the bytes of a label, or a mask."""
        return list(map(self.file.ids, self.starts[i], self.lengths[i]))
