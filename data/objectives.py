"""Batch: what one step trains on."""

from bisect import bisect_right
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
import torch

from configs.registry import Bounds, Ratio
from configs.schema import IGNORE_INDEX


class Batch(NamedTuple):
    """The keywords of the model's forward, (B, T) each; the targets, (B, T); and how many there are."""

    inputs: dict[str, torch.Tensor]
    targets: torch.Tensor
    count: int

    def map_tensors(self, move):
        return Batch({name: move(x) for name, x in self.inputs.items()}, move(self.targets), self.count)

    def to(self, device):
        return self.map_tensors(lambda x: x.to(device, non_blocking=True))

    def pinned(self):
        return self.map_tensors(torch.Tensor.pin_memory)

    def rows(self, start, stop):
        """Some of its rows: a micro-batch."""
        part = self.map_tensors(lambda x: x[start:stop])
        return part._replace(count=int((part.targets != IGNORE_INDEX).sum()))


def make_batch(inputs, targets, count):
    return Batch({name: torch.from_numpy(x) for name, x in inputs.items()}, torch.from_numpy(targets), count)


class NextToken:
    """Each token is predicted from those before it."""

    input_kind, architectures, specials = "text", ("decoder",), ("end",)
    lookahead = 1  # tokens of a row beyond the window

    def __init__(self, context_length):
        self.seq_len = context_length

    def batch(self, rows, draw, tokenizer):
        return make_batch({"tokens": rows[:, :-1]}, rows[:, 1:], rows[:, 1:].size)


def random_subset_mask(words, n):
    """True at the n lowest of each row: n places drawn without replacement."""
    chosen = np.zeros(words.shape, bool)
    np.put_along_axis(chosen, np.argsort(words, axis=1, kind="stable")[:, :n], True, axis=1)
    return chosen


class Masked:
    """A share of the tokens is to be guessed from both sides (arxiv.org/abs/1810.04805). Of these, 80 % are
    hidden behind a mask, 10 % behind a random token, 10 % are left to see."""

    input_kind, architectures, specials = "text", ("encoder",), ("end", "mask")
    lookahead = 0

    def __init__(self, context_length, mask_prob: Ratio):
        self.seq_len, self.mask_prob = context_length, mask_prob

    def batch(self, rows, draw, tokenizer):
        width = rows.shape[1]
        n = max(1, round(self.mask_prob * width))
        asked = random_subset_mask(draw("asked", width), n)
        fate = draw("fate", width) % np.uint64(10)
        other = draw("other", width) % np.uint64(tokenizer.n_ordinary)
        tokens = np.where(asked & (fate < 8), tokenizer.specials["mask"], rows)
        tokens = np.where(asked & (fate == 8), other.astype(np.int64), tokens)
        return make_batch({"tokens": tokens}, np.where(asked, rows, IGNORE_INDEX), n * len(rows))


class Span:
    """Short spans are cut from the text, each leaving a sentinel; the answer lists, sentinel by sentinel,
    what is missing (arxiv.org/abs/1910.10683). The share is cut exactly, so that all rows are alike."""

    input_kind, architectures = "text", ("encoder_decoder",)
    lookahead = 0

    def __init__(
        self, context_length, noise_density: Ratio, mean_span_length: Annotated[float, Bounds(least=1)]
    ):
        self.noise_density, self.mean_span_length = noise_density, mean_span_length
        # as much text as the source has room for once its spans are cut, and the answer too
        lengths = range(2, 2 * context_length + 2)
        fitting = bisect_right(lengths, context_length, key=self.longest)
        if not fitting:
            raise ValueError(
                f"a context of {context_length} has no room for a span; raise model.context_length"
            )
        self.seq_len = lengths[fitting - 1]
        spans = self.sizes(self.seq_len)[1]
        self.specials = ("end", "start", *(f"sentinel_{i}" for i in range(spans)))

    def sizes(self, length):
        """(tokens cut, in how many spans)"""
        cut = min(max(1, round(self.noise_density * length)), length - 1)
        return cut, min(max(1, round(cut / self.mean_span_length)), length - cut)

    def longest(self, length):
        cut, spans = self.sizes(length)
        return max(length - cut + spans, cut + spans + 1)

    def batch(self, rows, draw, tokenizer):
        cut, spans = self.sizes(rows.shape[1])
        kept_lengths = random_partition(rows.shape[1] - cut, spans, partial(draw, "kept"))
        cut_lengths = random_partition(cut, spans, partial(draw, "cut"))
        lengths = np.stack([kept_lengths, cut_lengths], 2).reshape(len(rows), -1)
        missing = np.stack([np.repeat(np.arange(2 * spans) % 2 == 1, row) for row in lengths])
        sentinels = np.array([tokenizer.specials[f"sentinel_{i}"] for i in range(spans)])
        answer = collapse_spans(rows, ~missing, sentinels)
        start, end = (np.full((len(rows), 1), tokenizer.specials[name]) for name in ("start", "end"))
        inputs = {"source": collapse_spans(rows, missing, sentinels), "tokens": np.hstack([start, answer])}
        targets = np.hstack([answer, end])
        return make_batch(inputs, targets, targets.size)


def random_partition(total, n, draw):
    """`total` as a sum of n lengths, none of them zero: every such sum is as likely."""
    chosen = random_subset_mask(draw(total - 1), n - 1)
    cuts = 1 + np.nonzero(chosen)[1].reshape(len(chosen), n - 1)
    return np.diff(cuts, axis=1, prepend=0, append=total)


def collapse_spans(rows, out, sentinels):
    """Each run of tokens that is out becomes its sentinel."""
    first = out & ~np.hstack([np.zeros((len(rows), 1), bool), out[:, :-1]])
    number = np.cumsum(first, axis=1) - 1
    return np.where(first, sentinels[number], rows)[~out | first].reshape(len(rows), -1)


class Seq2Seq:
    """A source is given and its target asked for. A decoder reads source and target as one text and learns
    only the target; an encoder-decoder encodes the source."""

    input_kind, architectures, specials = "pairs", ("decoder", "encoder_decoder"), ("end", "pad", "start")

    def __init__(self, context_length, architecture, too_long: Annotated[str, ("drop", "truncate", "error")]):
        if context_length < 3:
            raise ValueError(
                f"a context of {context_length} has no room for a pair; raise model.context_length"
            )
        self.context_length, self.too_long, self.joined = context_length, too_long, architecture == "decoder"

    def kept(self, source_lengths, target_lengths):
        """How much of each source and target there is room for."""
        if not self.joined:
            return np.minimum(source_lengths, self.context_length), np.minimum(
                target_lengths, self.context_length - 1
            )
        room = self.context_length - 1  # the start token stands between them; neither squeezes out the other
        targets = np.minimum(target_lengths, np.maximum(room - source_lengths, room // 2))
        return np.minimum(source_lengths, room - targets), targets

    def widths(self, source_lengths, target_lengths):
        """(pair, row): the tokens of each row that is made of a pair, one or two."""
        if self.joined:
            return (source_lengths + 1 + target_lengths)[:, None]
        return np.stack([source_lengths, 1 + target_lengths], 1)

    def batch(self, sources, answers, widths, tokenizer):
        """An answer is a target with its end, or as much of it as there is room for."""
        pad, start = tokenizer.specials["pad"], tokenizer.specials["start"]
        pairs = list(zip(sources, answers, strict=True))
        count = sum(map(len, answers))
        if self.joined:
            tokens = pad_rows([[*source, start, *answer[:-1]] for source, answer in pairs], *widths, pad)
            asked = pad_rows(
                [[IGNORE_INDEX] * len(source) + [*answer] for source, answer in pairs], *widths, IGNORE_INDEX
            )
            return make_batch({"tokens": tokens}, asked, count)
        width, answer_width = widths
        inputs = {
            "source": pad_rows(sources, width, pad),
            "tokens": pad_rows([[start, *answer[:-1]] for answer in answers], answer_width, pad),
            "source_visible": np.arange(width) < np.array([[len(source)] for source in sources]),
        }
        return make_batch(inputs, pad_rows(answers, answer_width, IGNORE_INDEX), count)


def pad_rows(rows, width, filler):
    full = np.full((len(rows), width), filler, np.int64)
    for i, row in enumerate(rows):
        full[i, : len(row)] = row
    return full


OBJECTIVES = {"next_token": NextToken, "masked": Masked, "span": Span, "pairs": Seq2Seq}
