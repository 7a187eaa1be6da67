"""Bigrams: each token also reads the four before it, without attention, which would otherwise have
to find them."""

from typing import Any

import torch
from torch import Tensor, nn

from model.embedding import make_table


class Bigrams(nn.Module):
    """x_t + w_1 * x_(t-1) + ... + w_4 * x_(t-4), with a weight for each channel, and a vector for
    the pair of tokens at t-1 (0 if there is none) and t. Pairs are hashed to rows of a table, and
    rare ones share rows, as in fastText (arxiv.org/abs/1607.01759). reset() sets all values."""

    def __init__(self, rows: int, d_model: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(4, d_model))
        self.table = make_table(rows, d_model)

    def reset(self) -> None:
        nn.init.zeros_(self.table.weight)
        nn.init.constant_(self.weights, 0.15)

    def forward(
        self, x: Tensor, tokens_BT: Tensor | None, slots: Tensor, pos: Tensor, cache: Any
    ) -> Tensor:
        """slots: (T,), where the new tokens are stored. pos: (1|B, T), their positions; there is no
        token before position 0. cache: a KVCache, in decoding."""
        if tokens_BT is None:
            raise ValueError("model.bigrams needs ids: give the stack tokens=, or set it to null")

        # the tokens that may be read: in decoding, those of earlier steps, too
        new = x, tokens_BT[..., None]
        all_BSC, ids_BS1 = new if cache is None else cache.append(*new)

        def before(values: Tensor, lag: int) -> Tensor:
            """Those of the tokens `lag` places before; where there are none, wrong ones. (Without a
            cache they are rolled: torch 2.13 compiles a wrong backward pass of index_select on a
            CPU.)"""
            if cache is None:
                return values.roll(lag, 1)
            return values.index_select(1, (slots - lag).clamp(0))

        for lag, weight in enumerate(self.weights, 1):
            factors = weight * (pos >= lag)[..., None]  # zero where there are none
            x = torch.addcmul(x, before(all_BSC, lag), factors.to(x.dtype))

        previous_BT = (before(ids_BS1, 1)[..., 0] + 1) * (pos > 0)  # 0 where there is none
        pair_BT = previous_BT * 27_191 ^ tokens_BT * 1_000_003  # two primes
        return x + self.table(pair_BT % self.table.num_embeddings)
