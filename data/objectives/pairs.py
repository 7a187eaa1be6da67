"""Objectives for pairs and conversations: only targets and answers are predicted."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from configs.schema import IGNORE_INDEX
from data.batch import Batch, make_batch
from data.objectives.next_token import Objective
from data.tokenizers.tokenizer import Tokenizer

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
        start = tokenizer.start
        tokens = [np.insert(target[:-1], 0, start) for target in targets]
        n_tokens = sum(map(len, sources)) + sum(map(len, targets))
        inputs = {}
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
    """Predict what the assistant says, including its end token, from all that precedes it."""

    input_kind = "chat"
    items = "conversations"

    context_length: int
    too_long: TooLong

    def truncated_lengths(self, lengths: ndarray) -> ndarray:
        """One more than the context, because the last id is only a target."""
        return np.minimum(lengths, self.context_length + 1)

    def widths(self, lengths: ndarray) -> ndarray:
        return lengths[:, :1] - 1

    def batch(self, rows: list[ndarray], masks: list[ndarray], tokenizer: Tokenizer) -> Batch:
        """Make a batch. Any id can be the padding: no target follows one."""
        tokens = pad_rows([ids[:-1] for ids in rows], tokenizer.pad)
        said = [np.where(mask, ids, IGNORE_INDEX) for ids, mask in zip(rows, masks, strict=True)]
        targets = pad_rows([ids[1:] for ids in said], IGNORE_INDEX)
        n_tokens = sum(map(len, rows)) - len(rows)
        return make_batch(targets, n_tokens=n_tokens, tokens=tokens)


def pad_rows(rows: list[ndarray], value: int) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)
