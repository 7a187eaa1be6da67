"""Objectives for pairs and conversations, of which only targets and answers are predicted, and for
texts with labels."""

import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs.cli import print0
from configs.errors import DataError
from configs.schema import IGNORE_INDEX
from data.batch import Batch, make_batch
from data.objectives.next_token import Objective
from data.store import TokenFile
from data.tokenizers.tokenizer import Tokenizer

TEMPLATE = 2  # tokens that may surround a text with a label, such as [CLS] and [SEP]
TooLong = Literal["drop", "truncate", "error"]


@dataclass
class Seq2Seq(Objective):
    """Predict the target from the source. A decoder reads both as one text, and only the target
    counts for the loss; an encoder-decoder encodes the source."""

    input_kind = "pairs"
    items = "pairs"
    architectures = ("decoder", "encoder_decoder")
    specials = ("end", "pad", "start")
    accuracy = "val_exact_match"

    context_length: int
    architecture: str
    too_long: TooLong

    @property
    def is_joined(self) -> bool:
        """Whether a source and its target are one row."""
        return self.architecture == "decoder"

    def truncated_lengths(self, lengths: ndarray) -> ndarray:
        """How many tokens of each source and target fit, (pair, 2). In a decoder they share the
        context, and each may use at least half of it."""
        context = self.context_length
        if not self.is_joined:
            return np.minimum(lengths, context)

        sources, targets = lengths.T
        half = (context + 1) // 2
        targets = np.minimum(targets, np.maximum(context - sources, half))
        sources = np.minimum(sources, context - targets)

        return np.stack([sources, targets], 1)

    def widths(self, lengths: ndarray) -> ndarray:
        """The lengths of the one or two rows that a pair becomes, (pair, row)."""
        return lengths.sum(1, keepdims=True) if self.is_joined else lengths

    def batch(self, sources: list[ndarray], targets: list[ndarray], tokenizer: Tokenizer) -> Batch:
        """`targets` have an end token unless they are truncated."""
        pad = tokenizer.pad
        tokens = [np.insert(target[:-1], 0, tokenizer.start) for target in targets]

        n_tokens = sum(map(len, sources + targets))

        inputs = {}
        if self.is_joined:
            tokens = list(map(np.append, sources, tokens))
            silent = [np.full_like(source, IGNORE_INDEX) for source in sources]
            targets = list(map(np.append, silent, targets))
        else:
            visible = [np.ones_like(source, bool) for source in sources]
            inputs["source"] = pad_rows(sources, pad)
            inputs["source_visible"] = pad_rows(visible, False)

        inputs["tokens"] = pad_rows(tokens, pad)
        return make_batch(pad_rows(targets, IGNORE_INDEX), n_tokens=n_tokens, **inputs)


@dataclass
class Chat(Objective):
    """Predict what the assistant says, including its end token, from all that precedes it."""

    input_kind = "chat"
    items = "conversations"

    context_length: int
    too_long: TooLong

    def truncated_lengths(self, lengths: ndarray) -> ndarray:
        """One more than the context, because the last id is only a target."""
        return np.minimum(lengths, self.context_length + 1)

    def widths(self, lengths: ndarray) -> ndarray:
        """A conversation is one row, and its last id is only a target."""
        return lengths[:, :1] - 1

    def batch(self, rows: list[ndarray], masks: list[ndarray], tokenizer: Tokenizer) -> Batch:
        """Make a batch. Any id can be the padding: no target follows one."""
        tokens = pad_rows([ids[:-1] for ids in rows], tokenizer.pad)
        said = [np.where(mask, ids, IGNORE_INDEX) for ids, mask in zip(rows, masks, strict=True)]
        targets = pad_rows([ids[1:] for ids in said], IGNORE_INDEX)

        return make_batch(targets, n_tokens=sum(map(len, rows)) - len(rows), tokens=tokens)


@dataclass
class Classify(Seq2Seq):
    """Predict the label of a text: an encoder at its first token, a decoder at its last one."""

    input_kind = "labels"
    items = "texts"
    architectures = ("encoder", "decoder")
    accuracy = "confusion"
    sort_group = 1  # a class may have texts of one length; a batch of them teaches less

    classes: list[str] | None = None  # None: the labels of the training texts

    def find_classes(self, train: TokenFile, validation: TokenFile) -> None:
        """Set the classes; refuse a label that is none of them."""
        labels = labels_of(train)
        self.classes = [*map(str, self.classes or sorted(labels))]

        print0(f"classes     {', '.join(self.classes):.200}", file=sys.stderr)

        if unknown := (labels | labels_of(validation)).difference(self.classes):
            owner = "the model" if unknown & labels else "the training data"
            raise DataError(f"{owner} does not have the class {min(unknown)!r}")

        if len(set(self.classes)) < max(2, len(self.classes)):
            raise DataError("a classifier needs at least two classes, all of them different")

    def truncated_lengths(self, lengths: ndarray) -> ndarray:
        """A text leaves room for its template; a label has any length."""
        return np.minimum(lengths, [self.context_length - TEMPLATE, sys.maxsize])

    def widths(self, lengths: ndarray) -> ndarray:
        """A text is one row, with its template."""
        return lengths[:, :1] + TEMPLATE

    def batch(self, texts: list[ndarray], labels: list[ndarray], tokenizer: Tokenizer) -> Batch:
        """Make a batch with one target in each row, the number of its class."""
        before, after = (np.array(ids, int) for ids in tokenizer.template)
        rows = [np.concatenate([before, text, after]) for text in texts]
        tokens = pad_rows(rows, tokenizer.pad)

        targets = torch.full_like(tokens, IGNORE_INDEX)
        is_encoder = self.architecture == "encoder"

        for row, target, label in zip(rows, targets, labels, strict=True):
            place = 0 if is_encoder else len(row) - 1
            target[place] = (self.classes or []).index(label_text(label))

        inputs = {"tokens": tokens}
        if is_encoder:
            inputs["visible"] = pad_rows([np.ones_like(row, bool) for row in rows], False)

        return make_batch(targets, n_tokens=sum(map(len, rows)), **inputs)


def labels_of(file: TokenFile) -> set[str]:
    """The labels that occur in a split; of a mix, in all its sources."""
    labels: set[str] = set()
    for part in file.parts:
        starts, lengths = part.pairs()
        labels.update(map(label_text, map(part.ids, starts[:, 1], lengths[:, 1])))
    return labels


def label_text(label: ndarray) -> str:
    """A label is stored as its bytes, because a tokenizer may change a text."""
    return label.astype(np.uint8).tobytes().decode()


def pad_rows(rows: list[ndarray], value: int) -> Tensor:
    """One tensor of the rows, padded on the right."""
    tensors = [torch.from_numpy(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)
