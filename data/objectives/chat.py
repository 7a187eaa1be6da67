"""Conversations: what the assistant says is predicted."""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from configs.schema import IGNORE_INDEX
from data.batch import Batch, make_batch
from data.objectives import Objective, TooLong, pad_rows
from data.tokenizers.tokenizer import Tokenizer


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
