"""Objectives: what a model is trained to predict, and the batch that asks for it.

The names given to draw() are seeds: with other names, the same seed gives other batches.
"""

from bisect import bisect_right
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
import torch

from configs.registry import Bounds, Ratio
from configs.schema import IGNORE_INDEX

MeanLength = Annotated[float, Bounds(least=1)]


class Batch(NamedTuple):
    """Keyword arguments of the model's forward and the targets, (B, T) each, and the number of targets."""

    inputs: dict[str, torch.Tensor]
    targets: torch.Tensor
    count: int

    def map_tensors(self, function):
        inputs = {name: function(x) for name, x in self.inputs.items()}
        return Batch(inputs, function(self.targets), self.count)

    def to(self, device):
        return self.map_tensors(lambda x: x.to(device, non_blocking=True))

    def pinned(self):
        return self.map_tensors(torch.Tensor.pin_memory)

    def rows(self, start, stop):
        """Some of its rows: a micro-batch."""
        part = self.map_tensors(lambda x: x[start:stop])
        return part._replace(count=int((part.targets != IGNORE_INDEX).sum()))

    def share(self, rank, size):
        n = len(self.targets)
        rows = slice(rank * n // size, (rank + 1) * n // size)
        return (
            self.rows(rows.start, rows.stop)
            if rows.start < rows.stop
            else self.rows(0, 1).without_targets()
        )

    def without_targets(self):
        return self._replace(targets=torch.full_like(self.targets, IGNORE_INDEX), count=0)


def make_batch(inputs, targets, count):
    return Batch(
        {name: torch.from_numpy(x) for name, x in inputs.items()}, torch.from_numpy(targets), count
    )


class NextToken:
    """Each token is predicted from those before it."""

    input_kind, architectures, specials = "text", ("decoder",), ("end",)
    lookahead = 1  # tokens of a row beyond seq_len

    def __init__(self, context_length):
        self.seq_len = context_length

    def batch(self, rows, draw, tokenizer):
        return make_batch({"tokens": rows[:, :-1]}, rows[:, 1:], rows[:, 1:].size)


def random_subset_mask(words, n):
    """True at the n lowest of each row: n positions, sampled without replacement."""
    mask = np.zeros(words.shape, bool)
    np.put_along_axis(mask, np.argsort(words, axis=1, kind="stable")[:, :n], True, axis=1)
    return mask


class Masked:
    """Masked language modeling (arxiv.org/abs/1810.04805): of the tokens to predict, 80 % are replaced by a
    mask, 10 % by a random token, and 10 % are left as they are."""

    input_kind, architectures, specials = "text", ("encoder",), ("end", "mask")
    lookahead = 0

    def __init__(self, context_length, mask_prob: Ratio):
        self.seq_len, self.mask_prob = context_length, mask_prob

    def batch(self, rows, draw, tokenizer):
        length = rows.shape[1]
        n = max(1, round(self.mask_prob * length))
        is_masked = random_subset_mask(draw("asked", length), n)
        roll = draw("fate", length) % np.uint64(10)
        random_ids = (draw("other", length) % np.uint64(tokenizer.n_ordinary)).astype(np.int64)
        tokens = np.where(is_masked & (roll < 8), tokenizer.specials["mask"], rows)
        tokens = np.where(is_masked & (roll == 8), random_ids, tokens)
        return make_batch(
            {"tokens": tokens}, np.where(is_masked, rows, IGNORE_INDEX), n * len(rows)
        )


class Span:
    """Span corruption (arxiv.org/abs/1910.10683): a sentinel replaces each span, and the target lists them
    after their sentinels. Exactly noise_density of the tokens are removed, so all rows have one length."""

    input_kind, architectures, lookahead = "text", ("encoder_decoder",), 0

    def __init__(self, context_length, noise_density: Ratio, mean_span_length: MeanLength):
        self.noise_density, self.mean_span_length = noise_density, mean_span_length
        # as much text as fits once its spans are removed, if the target fits, too
        lengths = range(2, 2 * context_length + 2)
        n = bisect_right(lengths, context_length, key=self.longest)
        if not n:
            raise ValueError(f"model.context_length is {context_length}: too short for a span")
        self.seq_len = lengths[n - 1]
        self.specials = (
            "end",
            "start",
            *(f"sentinel_{i}" for i in range(self.sizes(self.seq_len)[1])),
        )

    def sizes(self, length):
        """(tokens removed, in how many spans)"""
        removed = min(max(1, round(self.noise_density * length)), length - 1)
        return removed, min(max(1, round(removed / self.mean_span_length)), length - removed)

    def longest(self, length):
        removed, spans = self.sizes(length)
        return max(length - removed + spans, removed + spans + 1)

    def batch(self, rows, draw, tokenizer):
        removed, spans = self.sizes(rows.shape[1])
        kept_lengths = random_partition(rows.shape[1] - removed, spans, partial(draw, "kept"))
        removed_lengths = random_partition(removed, spans, partial(draw, "cut"))
        lengths = np.stack([kept_lengths, removed_lengths], 2).reshape(len(rows), -1)
        is_removed = np.stack([np.repeat(np.arange(2 * spans) % 2 == 1, row) for row in lengths])
        sentinels = np.array([tokenizer.specials[f"sentinel_{i}"] for i in range(spans)])
        target = collapse_spans(rows, ~is_removed, sentinels)
        start, end = (
            np.full((len(rows), 1), tokenizer.specials[name]) for name in ("start", "end")
        )
        source = collapse_spans(rows, is_removed, sentinels)
        targets = np.hstack([target, end])
        return make_batch(
            {"source": source, "tokens": np.hstack([start, target])}, targets, targets.size
        )


def random_partition(total, n, draw):
    """`total` as a sum of n positive lengths, each such sum equally likely."""
    mask = random_subset_mask(draw(total - 1), n - 1)
    cuts = 1 + np.nonzero(mask)[1].reshape(len(mask), n - 1)
    return np.diff(cuts, axis=1, prepend=0, append=total)


def collapse_spans(rows, is_removed, sentinels):
    """Each run of removed tokens becomes its sentinel."""
    first = is_removed & ~np.hstack([np.zeros((len(rows), 1), bool), is_removed[:, :-1]])
    number = np.cumsum(first, axis=1) - 1
    return np.where(first, sentinels[number], rows)[~is_removed | first].reshape(len(rows), -1)


class Seq2Seq:
    """The target is predicted from the source. A decoder reads both as one text, and only the target counts
    for the loss; an encoder-decoder encodes the source."""

    input_kind, architectures, specials = (
        "pairs",
        ("decoder", "encoder_decoder"),
        ("end", "pad", "start"),
    )

    def __init__(
        self, context_length, architecture, too_long: Annotated[str, ("drop", "truncate", "error")]
    ):
        if context_length < 3:
            raise ValueError(f"model.context_length is {context_length}: too short for a pair")
        self.context_length, self.too_long, self.joined = (
            context_length,
            too_long,
            architecture == "decoder",
        )

    def truncated_lengths(self, source_lengths, target_lengths):
        """How much of each source and target fits."""
        room = self.context_length - 1  # beside the start token
        if not self.joined:
            return np.minimum(source_lengths, self.context_length), np.minimum(target_lengths, room)
        # both share the room, and either has at least half of it
        targets = np.minimum(target_lengths, np.maximum(room - source_lengths, room // 2))
        return np.minimum(source_lengths, room - targets), targets

    def widths(self, source_lengths, target_lengths):
        """(pair, row): the tokens of the one or two rows that a pair becomes."""
        if self.joined:
            return (source_lengths + 1 + target_lengths)[:, None]
        return np.stack([source_lengths, 1 + target_lengths], 1)

    def batch(self, sources, targets, widths, tokenizer):
        """`targets` have an end token unless they are truncated."""
        pad, start = tokenizer.specials["pad"], tokenizer.specials["start"]
        pairs, count = list(zip(sources, targets, strict=True)), sum(map(len, targets))
        if self.joined:
            tokens = pad_rows(
                [[*source, start, *target[:-1]] for source, target in pairs], *widths, pad
            )
            ignored = [[*[IGNORE_INDEX] * len(source), *target] for source, target in pairs]
            return make_batch({"tokens": tokens}, pad_rows(ignored, *widths, IGNORE_INDEX), count)
        source_width, target_width = widths
        inputs = {"source": pad_rows(sources, source_width, pad)}
        inputs["tokens"] = pad_rows(
            [[start, *target[:-1]] for target in targets], target_width, pad
        )
        inputs["source_visible"] = np.arange(source_width) < np.array(
            [[len(source)] for source in sources]
        )
        return make_batch(inputs, pad_rows(targets, target_width, IGNORE_INDEX), count)


def pad_rows(rows, width, value):
    padded = np.full((len(rows), width), value, np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


OBJECTIVES = {"next_token": NextToken, "masked": Masked, "span": Span, "pairs": Seq2Seq}
