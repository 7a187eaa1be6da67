"""Token shift and bigrams: each token also reads the one before, which attention would otherwise
have to find."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.registry import Count
from model.attention import Attention
from model.block import AttentionContext, Block
from model.blocks import BLOCKS
from model.cache import Slots, State
from model.embedding import make_table
from model.norm import MakeNorm


def with_previous(
    values: Tensor, context: AttentionContext, state: State | None
) -> tuple[Tensor, Tensor]:
    """Returns (values, those of the token before): zero at padding, and before a text or document."""
    if context.visible is not None:
        values = values * context.visible[..., None]
    before = F.pad(values, (0, 0, 1, -1))

    if state is not None:
        [last] = state.read(before[:, :1])
        before[:, :1] = last
        state.write(values[:, -1:])

    if context.documents is not None:
        is_same_BT = context.documents.diff(prepend=context.documents[:, :1]) == 0
        before = before * is_same_BT[..., None]
    return values, before


class TokenShift(nn.Module):
    """x plus a multiple of the token before in each channel, which is zero at first: a causal
    convolution of two tokens. arxiv.org/abs/2305.13048 mixes both instead."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def new_cache(self, slots: Slots) -> State:
        return State()

    def forward(self, x: Tensor, context: AttentionContext, state: State | None) -> Tensor:
        x, before_BTC = with_previous(x, context, state)
        return torch.addcmul(x, before_BTC, self.weight.to(x.dtype))


class Bigram(nn.Module):
    """A vector for each pair of neighboring tokens. Pairs are hashed into the rows of a table, which
    are zero at first; rare pairs share rows, as in fastText (arxiv.org/abs/1607.01759)."""

    def __init__(self, rows: Count, d_model: int):
        super().__init__()
        self.table = make_table(rows, d_model)

    def reset(self) -> None:
        nn.init.zeros_(self.table.weight)

    def new_cache(self, slots: Slots) -> State:
        return State()

    def forward(self, context: Any, state: State | None) -> Tensor:
        numbers_BT1 = context.tokens[..., None] + 1  # 0 is no token
        ids_BT1, before_BT1 = with_previous(numbers_BT1, context, state)
        [pair_BT] = (before_BT1 * 27_191 ^ ids_BT1 * 1_000_003).unbind(-1)
        return self.table(pair_BT % self.table.num_embeddings)


class ShiftBlock(Block):
    """Pre-norm, with a token shift between norm and attention. If there are `rows`, the first layer
    also adds the vectors of pairs to its input."""

    def __init__(
        self,
        attention: Attention,
        ffn: nn.Module,
        norm: MakeNorm,
        d_model: int,
        rows: Count,
        cross: Attention | None = None,
        dropout: float = 0.0,
        layer: int = 0,
    ):
        super().__init__(attention, ffn, norm, cross, dropout, layer)
        self.shift = TokenShift(d_model)
        self.bigram = Bigram(rows, d_model) if rows and layer == 0 else None

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        if self.bigram is not None:
            x = x + self.bigram(context, context.states.get("bigram"))
        return super().forward(x, context)

    def self_attend(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = self.shift(x, context, context.states.get("shift"))
        return super().self_attend(x, context)


BLOCKS["shift"] = partial(ShiftBlock, rows=0)  # type: ignore[assignment]
BLOCKS["shift_bigram"] = ShiftBlock
