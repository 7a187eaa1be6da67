"""Bigram embeddings: a vector for each pair of neighboring tokens, which tells the first layer what
else it could learn only by attention."""

import torch
from torch import Tensor, nn

from configs.registry import Count
from model.attention import Attention
from model.block import AttentionContext, PreNormBlock, States
from model.blocks import BLOCKS
from model.cache import Slots, State
from model.embedding import make_table
from model.norm import MakeNorm

FIRST, SECOND = 27_191, 1_000_003  # factors of the hash


class Bigram(nn.Module):
    """Pairs are hashed into the rows of a table, so that rare ones share a row
    (arxiv.org/abs/1607.04606). Its vectors are zero at first."""

    def __init__(self, rows: Count, d_model: int):
        super().__init__()
        self.table = make_table(rows, d_model)

    def reset(self) -> None:
        nn.init.zeros_(self.table.weight)

    def new_cache(self, slots: Slots) -> State:
        return State()

    def forward(self, context: AttentionContext, state: State | None) -> Tensor:
        ids_BT = context.tokens + 1  # 0 is no token: before the text, and padding
        if context.visible is not None:
            ids_BT = ids_BT * context.visible
        newest_B1 = ids_BT.new_zeros(len(ids_BT), 1)
        if state is not None:
            [newest_B1] = state.read(newest_B1)
        before_BT = torch.cat([newest_B1, ids_BT[:, :-1]], 1)
        if state is not None:
            state.write(ids_BT[:, -1:])
        if context.documents is not None:
            is_first = context.documents.diff(prepend=context.documents[:, :1] - 1) != 0
            before_BT = before_BT.masked_fill(is_first, 0)

        pair_BT = before_BT * FIRST ^ ids_BT * SECOND
        return self.table(pair_BT % self.table.num_embeddings)


class BigramBlock(PreNormBlock):
    """The first layer adds the bigrams to its input."""

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
        self.bigram = Bigram(rows, d_model) if layer == 0 else None

    def forward(self, x: Tensor, context: AttentionContext, states: States = None) -> Tensor:
        if self.bigram is not None:
            x = x + self.bigram(context, states and states["bigram"])
        return super().forward(x, context, states)


BLOCKS["bigram"] = BigramBlock
