"""Bigram embeddings: a vector for each pair of neighboring tokens, which layers would otherwise have
to learn by attention."""

from typing import Any

from torch import Tensor, nn

from configs.registry import Count
from model.attention import Attention
from model.block import AttentionContext, States
from model.cache import Slots, State
from model.embedding import make_table
from model.norm import MakeNorm
from model.shift import BLOCKS, ShiftBlock, with_previous


class Bigram(nn.Module):
    """Pairs are hashed into the rows of a table, which are zero at first; rare pairs share rows, as
    in fastText (arxiv.org/abs/1607.01759)."""

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


class BigramBlock(ShiftBlock):
    """Token shift; the first layer also adds the vectors of pairs to its input."""

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
        super().__init__(attention, ffn, norm, cross, dropout, layer, d_model)
        self.bigram = Bigram(rows, d_model) if layer == 0 else None

    def forward(self, x: Tensor, context: AttentionContext, states: States = None) -> Tensor:
        if self.bigram is not None:
            x = x + self.bigram(context, states and states["bigram"])
        return super().forward(x, context, states)


BLOCKS["shift_bigram"] = BigramBlock
