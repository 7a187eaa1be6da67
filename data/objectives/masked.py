"""Masked language modeling (arxiv.org/abs/1810.04805)."""

import numpy as np
from numpy import ndarray

from configs.registry import Ratio
from configs.schema import IGNORE_INDEX
from data.batch import Batch, make_batch
from data.objectives import Draw, Objective
from data.tokenizers.tokenizer import Tokenizer


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
