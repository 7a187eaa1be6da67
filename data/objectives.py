"""Objectives: what a model is trained to predict, and the batch that asks for it.

The names given to draw() are seeds: with other names, the same seed gives other batches.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs.registry import Bounds, Ratio, Registry
from configs.schema import IGNORE_INDEX
from data.tokenizers.tokenizer import Tokenizer

Draw = Callable[[str, int], ndarray]  # (purpose, width) -> (row, width) random uint64
TooLong = Literal["drop", "truncate", "error"]
MeanLength = Annotated[float, Bounds(least=1)]


@dataclass
class Batch:
    """What a step takes: rows of a text, or pairs that are padded."""

    inputs: dict[str, Tensor]  # keyword arguments of the model's hidden()
    targets: Tensor  # (B, T)
    count: int  # of targets
    n_tokens: int = 0  # without padding; parts of a batch keep that of the whole

    def __iter__(self) -> Iterator[Any]:
        """The arguments of LossModule."""
        yield from (self.inputs, self.targets, self.count)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        inputs = {name: function(x) for name, x in self.inputs.items()}
        return replace(self, inputs=inputs, targets=function(self.targets))

    def to(self, device: torch.device) -> "Batch":
        is_gpu = device.type == "cuda"  # elsewhere a copy may be read before it is there
        return self.map_tensors(lambda x: x.to(device, non_blocking=is_gpu))

    def pinned(self) -> "Batch":
        return self.map_tensors(Tensor.pin_memory)

    def rows(self, start: int, stop: int) -> "Batch":
        """Some of its rows: a micro-batch."""
        return self.map_tensors(lambda x: x[start:stop]).recount()

    def share(self, rank: int, size: int) -> "Batch":
        """The rows of one of `size` processes. All have equally many, for they must run equally
        many forward passes: in place of a row that is missing, another one without targets."""
        n = len(self.targets)
        share = math.ceil(n / size)
        rows = torch.arange(rank * share, (rank + 1) * share)

        part = self.map_tensors(lambda x: x[rows % n])
        part.targets[rows >= n] = IGNORE_INDEX
        return part.recount()

    def recount(self) -> "Batch":
        return replace(self, count=int((self.targets != IGNORE_INDEX).sum()))


def make_batch(
    targets: ndarray | Tensor, n_tokens: int | None = None, **inputs: ndarray | Tensor
) -> Batch:
    """n_tokens: of the text that is in it, if its rows of targets are padded or not as long."""
    tensors = {name: torch.as_tensor(x) for name, x in inputs.items()}
    targets = torch.as_tensor(targets)
    n = targets.numel() if n_tokens is None else n_tokens
    return Batch(tensors, targets, 0, n).recount()


class Objective:
    """Base of all kinds. Those of text have batch(rows, draw, tokenizer), whose rows are `seq_len`
    tokens and `lookahead` more; of pairs and conversations see Seq2Seq and Chat. A batch() with a
    parameter `step` gets that, or None in an evaluation."""

    input_kind = "text"  # or pairs, or chat
    items = "sequences"  # that it is trained on
    architectures: tuple[str, ...] = ("decoder",)
    specials: tuple[str, ...] = ("end",)
    lookahead = 0
    bits_per_byte = False  # the loss is that of a text, each token once: it has a val_bpb
    accuracy: str | None = None  # of ACCURACIES in training/evaluate.py
    # special tokens around the pieces of a prompt that [MASK] splits, for a kind of your own
    prompt: tuple[str, ...] = ()


class NextToken(Objective):
    """Each token is predicted from those before it."""

    lookahead = 1
    bits_per_byte = True

    def __init__(self, context_length: int, document_mask: bool = False) -> None:
        self.seq_len = context_length
        self.document_mask = document_mask

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        inputs: dict[str, Any] = {"tokens": rows[:, :-1]}
        if self.document_mask:  # an end token begins the document that follows it
            is_first = inputs["tokens"] == tokenizer.specials["end"]
            inputs["documents"] = is_first.cumsum(1)
        return make_batch(rows[:, 1:], **inputs)


class Masked(Objective):
    """Masked language modeling (arxiv.org/abs/1810.04805): of the tokens to predict, 80 % are
    replaced by a mask, 10 % by a random token, and 10 % are left as they are."""

    architectures = ("encoder",)
    specials = ("end", "mask")
    accuracy = "val_accuracy"

    def __init__(self, context_length: int, mask_prob: Ratio) -> None:
        self.seq_len = context_length
        self.mask_prob = mask_prob

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        length = rows.shape[1]
        n = max(1, round(self.mask_prob * length))
        is_target = random_subset_mask(draw("asked", length), n)

        roll = draw("fate", length) % 10
        random_ids = draw("other", length) % tokenizer.n_ordinary
        tokens = np.where(is_target & (roll < 9), random_ids.astype(np.int64), rows)
        tokens[is_target & (roll < 8)] = tokenizer.specials["mask"]

        return make_batch(np.where(is_target, rows, IGNORE_INDEX), tokens=tokens)


def random_subset_mask(words: ndarray, n: int) -> ndarray:
    """True at the n lowest of each row: n positions, sampled without replacement."""
    mask = np.zeros(words.shape, bool)
    lowest = np.argsort(words, axis=1, kind="stable")[:, :n]
    np.put_along_axis(mask, lowest, True, axis=1)
    return mask


class Span(Objective):
    """Span corruption (arxiv.org/abs/1910.10683): a sentinel replaces each span, and the target
    lists them after their sentinels. Exactly noise_density of the tokens are removed, so all rows
    have one length."""

    architectures = ("encoder_decoder",)

    def __init__(
        self, context_length: int, noise_density: Ratio, mean_span_length: MeanLength
    ) -> None:
        self.noise_density = noise_density
        self.mean_span_length = mean_span_length

        self.seq_len = 2  # of the longest text of which both source and target fit
        if self.longest(self.seq_len) > context_length:
            raise ValueError(f"model.context_length is {context_length}: too short for a span")
        while self.longest(self.seq_len + 1) <= context_length:
            self.seq_len += 1

        _, n_spans = self.sizes(self.seq_len)
        self.specials = ("end", "start", *(f"sentinel_{i}" for i in range(n_spans)))

    def sizes(self, length: int) -> tuple[int, int]:
        """(tokens removed, in how many spans)"""
        removed = min(max(1, round(self.noise_density * length)), length - 1)
        spans = max(1, round(removed / self.mean_span_length))
        return removed, min(spans, length - removed)

    def longest(self, length: int) -> int:
        """Of source and target."""
        removed, spans = self.sizes(length)
        return max(length - removed + spans, removed + spans + 1)

    def batch(self, rows: ndarray, draw: Draw, tokenizer: Tokenizer) -> Batch:
        length = rows.shape[1]
        removed, spans = self.sizes(length)

        kept_lengths = random_partition(draw("kept", length - removed - 1), spans)
        removed_lengths = random_partition(draw("cut", removed - 1), spans)
        # they take turns: kept 3 and 2, removed 1 and 2 are 3 kept, 1 removed, 2 kept, 2 removed
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
    """n positive lengths for each row, by one random word for each place between two tokens; all
    partitions are equally likely."""
    n_rows, n_places = words.shape
    _, places = np.nonzero(random_subset_mask(words, n - 1))
    cuts = 1 + places.reshape(n_rows, n - 1)
    return np.diff(cuts, axis=1, prepend=0, append=n_places + 1)


def collapse_spans(rows: ndarray, is_removed: ndarray, sentinels: ndarray) -> ndarray:
    """Each run of removed tokens becomes its sentinel."""
    is_first = is_removed & np.diff(is_removed, axis=1, prepend=False)
    numbers = np.cumsum(is_first, axis=1) - 1
    collapsed = np.where(is_first, sentinels[numbers], rows)
    return collapsed[~is_removed | is_first].reshape(len(rows), -1)


@dataclass
class Seq2Seq(Objective):
    """The target is predicted from the source. A decoder reads both as one text, and only the
    target counts for the loss; an encoder-decoder encodes the source."""

    input_kind = "pairs"
    items = "pairs"
    architectures = ("decoder", "encoder_decoder")
    specials = ("end", "pad", "start")
    accuracy = "val_exact_match"

    context_length: int
    architecture: str
    too_long: TooLong
    prefix_lm: bool = False

    @property
    def is_joined(self) -> bool:
        return self.architecture == "decoder"

    def truncated_lengths(self, lengths: ndarray) -> ndarray:
        """(pair, 2): how much of each source and target fits. A decoder's share the context, and
        either has at least half of it."""
        context = self.context_length
        if not self.is_joined:
            return np.minimum(lengths, context)
        sources, targets = lengths.T
        half = (context + 1) // 2
        targets = np.minimum(targets, np.maximum(context - sources, half))
        sources = np.minimum(sources, context - targets)
        return np.stack([sources, targets], 1)

    def widths(self, lengths: ndarray) -> ndarray:
        """(pair, row): the tokens of the one or two rows that a pair becomes."""
        return lengths.sum(1, keepdims=True) if self.is_joined else lengths

    def batch(self, sources: list[ndarray], targets: list[ndarray], tokenizer: Tokenizer) -> Batch:
        """`targets` have an end token unless they are truncated."""
        pad = tokenizer.pad
        start = tokenizer.start
        tokens = [np.insert(target[:-1], 0, start) for target in targets]
        n_tokens = sum(map(len, sources)) + sum(map(len, targets))
        inputs = {}

        if self.prefix_lm:  # up to the start token, which predicts the first target
            lengths = [len(source) + 1 for source in sources]
            inputs["prefix"] = torch.tensor(lengths)

        if self.is_joined:
            tokens = list(map(np.append, sources, tokens))
            silent = [np.full(len(source), IGNORE_INDEX) for source in sources]
            targets = list(map(np.append, silent, targets))
        else:
            visible = [np.ones(len(source), bool) for source in sources]
            inputs["source"] = pad_rows(sources, pad)
            inputs["source_visible"] = pad_rows(visible, False)

        inputs["tokens"] = pad_rows(tokens, pad)
        return make_batch(pad_rows(targets, IGNORE_INDEX), n_tokens=n_tokens, **inputs)


@dataclass
class Chat(Objective):
    """What the assistant says is predicted, its end token included, from all that is before it."""

    input_kind = "chat"
    items = "conversations"

    context_length: int
    too_long: TooLong

    def truncated_lengths(self, lengths: ndarray) -> ndarray:
        """The last id is a target alone."""
        return np.minimum(lengths, self.context_length + 1)

    def widths(self, lengths: ndarray) -> ndarray:
        return lengths[:, :1] - 1

    def batch(self, rows: list[ndarray], masks: list[ndarray], tokenizer: Tokenizer) -> Batch:
        """Any id can pad: no target is behind one."""
        tokens = pad_rows([ids[:-1] for ids in rows], tokenizer.pad)
        targets = pad_rows([ids[1:] for ids in rows], IGNORE_INDEX)
        is_target = pad_rows([mask[1:] for mask in masks], False)
        targets = targets.where(is_target > 0, IGNORE_INDEX)
        n_tokens = sum(map(len, rows)) - len(rows)
        return make_batch(targets, n_tokens=n_tokens, tokens=tokens)


def pad_rows(rows: list[ndarray], value: int) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)


OBJECTIVES: Registry[type[Objective]] = Registry(
    next_token=NextToken,
    masked=Masked,
    span=Span,
    pairs=Seq2Seq,
    chat=Chat,
)
