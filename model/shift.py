"""Token shift: sub-layers also read the token before, which attention would otherwise have to
find."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.block import AttentionContext, PreNormBlock, States
from model.blocks import BLOCKS
from model.cache import Slots, State
from model.norm import MakeNorm


def with_previous(
    values: Tensor, context: AttentionContext, state: State | None
) -> tuple[Tensor, Tensor]:
    """Returns (values, those of the token before): zero at padding, and before a text or document."""
    if context.visible is not None:
        values = values * context.visible[..., None]
    before = F.pad(values[:, :-1], (0, 0, 1, 0))
    if state is not None:
        [before[:, :1]] = state.read(before[:, :1])
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


class ShiftBlock(PreNormBlock):
    """Pre-norm, with a token shift after each norm."""

    def make_norms(self, norm: MakeNorm) -> None:
        super().make_norms(norm)
        self.attention_shift = TokenShift(self.d_model)
        self.ffn_shift = TokenShift(self.d_model)

    def self_attend(self, x: Tensor, context: AttentionContext, states: States) -> Tensor:
        x = self.attention_shift(x, context, states and states["attention_shift"])
        return super().self_attend(x, context, states)

    def feed_forward(self, x: Tensor, context: AttentionContext, states: States) -> Tensor:
        x = self.ffn_shift(x, context, states and states["ffn_shift"])
        return super().feed_forward(x, context, states)


BLOCKS["shift"] = ShiftBlock
