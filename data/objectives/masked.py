"""Objectives that hide parts of a text: masked tokens, and spans that are cut out.

The names given to draw() are part of the seed: with other names, the same seed gives other batches.
"""

from typing import Annotated

import numpy as np
from numpy import ndarray

from configs.registry import Bounds, Ratio
from configs.schema import IGNORE_INDEX
from data.batch import Batch, make_batch
from data.objectives.next_token import Draw, Objective
from data.tokenizers.tokenizer import Tokenizer

MeanLength = Annotated[float, Bounds(least=1)]


class Masked(Objective):
    """Masked language modeling (arxiv.org/abs/1810.04805): of the tokens to predict, 80 % are
    replaced by a mask, 10 % by a random token, and 10 % are left as they are."""

    architectures = ("encoder",)
    specials = ("end", "mask")
    accuracy = "val_accuracy"

    def __init__(self, context_length: int, mask_prob: Ratio):
        """mask_prob: the share of the tokens that are predicted."""
        self.seq_len = context_length
        self.mask_prob = mask_prob

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        """Make a batch of rows with masks, and of the tokens that they hide."""
        length = rows.shape[1]
        n = max(1, round(self.mask_prob * length))
        is_target = random_subset_mask(draw("asked", length), n)

        roll = draw("fate", length) % 10
        random_ids = draw("other", length) % tokenizer.n_ordinary
        tokens = np.where(is_target & (roll < 9), random_ids.astype(np.int64), rows)
        tokens[is_target & (roll < 8)] = tokenizer.specials["mask"]

        return make_batch(np.where(is_target, rows, IGNORE_INDEX), tokens=tokens)


def random_subset_mask(words: ndarray, n: int) -> ndarray:
    """True at the n lowest words of each row: n positions, sampled without replacement. (Sorted
    twice, words become their ranks.)"""
    ranks = words.argsort(axis=1, kind="stable").argsort(axis=1)
    return ranks < n


class Span(Objective):
    """Span corruption (arxiv.org/abs/1910.10683): a sentinel replaces each span, and the target
    lists the spans after their sentinels. Exactly noise_density of the tokens are removed, so all
    rows have the same length."""

    architectures = ("encoder_decoder",)

    def __init__(self, context_length: int, noise_density: Ratio, mean_span_length: MeanLength):
        """noise_density: the share of the tokens that are removed."""
        self.noise_density = noise_density
        self.mean_span_length = mean_span_length

        self.seq_len = 2  # becomes that of the longest text whose source and target fit
        if self.longest(self.seq_len) > context_length:
            raise ValueError(f"model.context_length is {context_length}: too short for a span")

        while self.longest(self.seq_len + 1) <= context_length:
            self.seq_len += 1

        _, n_spans = self.sizes(self.seq_len)
        self.specials = ("end", "start", *(f"sentinel_{i}" for i in range(n_spans)))

    def sizes(self, length: int) -> tuple[int, int]:
        """Returns (the number of tokens removed, in how many spans)."""
        removed = min(max(1, round(self.noise_density * length)), length - 1)
        spans = max(1, round(removed / self.mean_span_length))

        return removed, min(spans, length - removed)

    def longest(self, length: int) -> int:
        """The longer of the lengths of source and target."""
        removed, spans = self.sizes(length)

        return max(length - removed + spans, removed + spans + 1)

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        """Make a batch of texts without their spans, and of the spans."""
        length = rows.shape[1]
        removed, spans = self.sizes(length)

        kept_lengths = random_partition(draw("kept", length - removed - 1), spans)
        removed_lengths = random_partition(draw("cut", removed - 1), spans)

        # they alternate: kept 3 and 2, removed 1 and 2 are 3 kept, 1 removed, 2 kept, 2 removed
        lengths = np.stack([kept_lengths, removed_lengths], 2).ravel()
        turns = np.tile([False, True], lengths.size // 2)
        is_removed = np.repeat(turns, lengths).reshape(rows.shape)

        special = tokenizer.specials
        sentinels = np.array([special[f"sentinel_{i}"] for i in range(spans)])

        target = collapse_spans(rows, ~is_removed, sentinels)
        return make_batch(
            np.insert(target, target.shape[1], special["end"], axis=1),
            source=collapse_spans(rows, is_removed, sentinels),
            tokens=np.insert(target, 0, special["start"], axis=1),
            n_tokens=rows.size,
        )


def random_partition(words: ndarray, n: int) -> ndarray:
    """n positive lengths for each row, from one random word for each place between two tokens; all
    partitions are equally likely."""
    n_rows, n_places = words.shape
    _, places = np.nonzero(random_subset_mask(words, n - 1))

    cuts = 1 + places.reshape(n_rows, n - 1)
    return np.diff(cuts, axis=1, prepend=0, append=n_places + 1)


def collapse_spans(rows: ndarray, is_removed: ndarray, sentinels: ndarray) -> ndarray:
    """Replace each run of removed tokens by its sentinel."""
    is_first = is_removed & np.diff(is_removed, axis=1, prepend=False)
    numbers = np.cumsum(is_first, axis=1) - 1

    collapsed = np.where(is_first, sentinels[numbers], rows)
    return collapsed[~is_removed | is_first].reshape(len(rows), -1)
