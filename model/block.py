"""Block: one layer. Its kinds differ only in where the norms are."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn as nn

from model.attend import Mask


class AttentionContext(NamedTuple):
    """What the attention of every layer needs beside x; a stack makes it once per forward pass."""

    mask: Mask
    rotate: Callable | None = None  # applies rotary position embeddings
    memory: torch.Tensor | None = None  # the encoder's output
    memory_mask: Mask | None = None


class Block(nn.Module):
    """Self-attention, cross-attention if there is a memory, feed-forward. `norm` makes a new norm."""

    needs_final_norm = True  # the residual stream leaves the last block unnormalized

    def __init__(self, attention, ffn, norm, cross=None, dropout=0.0):
        super().__init__()
        self.attention, self.cross, self.ffn = attention, cross, ffn
        self.attention_norm, self.ffn_norm = norm(), norm()
        self.cross_norm = norm() if cross is not None else None
        self.drop = nn.Dropout(dropout)

    def self_attend(self, x, context, cache):
        return self.attention(
            x, mask=context.mask, rotate=context.rotate, cache=cache and cache.self_attn
        )

    def cross_attend(self, x, context, cache):
        return self.cross(
            x, context.memory, mask=context.memory_mask, cache=cache and cache.cross_attn
        )


def blocks_of(model):
    return [module for module in model.modules() if isinstance(module, Block)]


class PreNormBlock(Block):
    """Sub-layers read a normalized copy of the residual stream (arxiv.org/abs/2002.04745)."""

    def forward(self, x, context, cache=None):
        x = x + self.drop(self.self_attend(self.attention_norm(x), context, cache))
        if context.memory is not None:
            x = x + self.drop(self.cross_attend(self.cross_norm(x), context, cache))
        x = x + self.drop(self.ffn(self.ffn_norm(x)))
        return x


class PostNormBlock(Block):
    """The residual stream is normalized after each sub-layer (arxiv.org/abs/1706.03762)."""

    needs_final_norm = False

    def forward(self, x, context, cache=None):
        x = self.attention_norm(x + self.drop(self.self_attend(x, context, cache)))
        if context.memory is not None:
            x = self.cross_norm(x + self.drop(self.cross_attend(x, context, cache)))
        x = self.ffn_norm(x + self.drop(self.ffn(x)))
        return x


class SandwichBlock(Block):
    """Pre-norm, with another norm on each sub-layer's output (arxiv.org/abs/2105.13290)."""

    def __init__(self, attention, ffn, norm, cross=None, dropout=0.0):
        super().__init__(attention, ffn, norm, cross, dropout)
        self.attention_added_norm, self.ffn_added_norm = norm(), norm()
        self.cross_added_norm = norm() if cross is not None else None

    def forward(self, x, context, cache=None):
        x = x + self.drop(
            self.attention_added_norm(self.self_attend(self.attention_norm(x), context, cache))
        )
        if context.memory is not None:
            x = x + self.drop(
                self.cross_added_norm(self.cross_attend(self.cross_norm(x), context, cache))
            )
        x = x + self.drop(self.ffn_added_norm(self.ffn(self.ffn_norm(x))))
        return x


class ParallelBlock(Block):
    """All sub-layers read the same input (arxiv.org/abs/2204.02311)."""

    def forward(self, x, context, cache=None):
        added = self.self_attend(self.attention_norm(x), context, cache) + self.ffn(
            self.ffn_norm(x)
        )
        if context.memory is not None:
            added = added + self.cross_attend(self.cross_norm(x), context, cache)
        x = x + self.drop(added)
        return x


BLOCKS = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
    "sandwich": SandwichBlock,
    "parallel": ParallelBlock,
}
