"""Block: one layer. Its kinds differ in one thing: where the norms stand."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn as nn

from model.attend import Mask


class AttentionContext(NamedTuple):
    """What one forward pass lets every layer of a stack see; the stack makes it once."""

    mask: Mask
    rotate: Callable | None = None
    memory: torch.Tensor | None = None  # the encoder's output
    memory_mask: Mask | None = None


class Block(nn.Module):
    """Self-attention, a look at the memory where there is one, feed-forward. `norm` makes a new norm."""

    needs_final_norm = True  # the stream leaves the last block unnormalised

    def __init__(self, attention, ffn, norm, cross=None, dropout=0.0):
        super().__init__()
        self.attention, self.cross, self.ffn = attention, cross, ffn
        self.attention_norm, self.ffn_norm = norm(), norm()
        self.cross_norm = norm() if cross else None
        self.drop = nn.Dropout(dropout)

    def self_attend(self, x, sight, cache):
        return self.attention(x, mask=sight.mask, rotate=sight.rotate, cache=cache and cache.self_attn)

    def cross_attend(self, x, sight, cache):
        return self.cross(x, sight.memory, mask=sight.memory_mask, cache=cache and cache.cross_attn)


class PreNormBlock(Block):
    """Each sub-layer reads a normalised copy, the stream passes untouched (arxiv.org/abs/2002.04745)."""

    def forward(self, x, sight, cache=None):
        x = x + self.drop(self.self_attend(self.attention_norm(x), sight, cache))
        if sight.memory is not None:
            x = x + self.drop(self.cross_attend(self.cross_norm(x), sight, cache))
        x = x + self.drop(self.ffn(self.ffn_norm(x)))
        return x


class PostNormBlock(Block):
    """The stream is normalised after each sub-layer, as in the paper of 2017 (arxiv.org/abs/1706.03762)."""

    needs_final_norm = False

    def forward(self, x, sight, cache=None):
        x = self.attention_norm(x + self.drop(self.self_attend(x, sight, cache)))
        if sight.memory is not None:
            x = self.cross_norm(x + self.drop(self.cross_attend(x, sight, cache)))
        x = self.ffn_norm(x + self.drop(self.ffn(x)))
        return x


class SandwichBlock(Block):
    """Pre, and what is added is normalised too (arxiv.org/abs/2105.13290)."""

    def __init__(self, attention, ffn, norm, cross=None, dropout=0.0):
        super().__init__(attention, ffn, norm, cross, dropout)
        self.attention_added_norm, self.ffn_added_norm = norm(), norm()
        self.cross_added_norm = norm() if cross else None

    def forward(self, x, sight, cache=None):
        x = x + self.drop(self.attention_added_norm(self.self_attend(self.attention_norm(x), sight, cache)))
        if sight.memory is not None:
            x = x + self.drop(self.cross_added_norm(self.cross_attend(self.cross_norm(x), sight, cache)))
        x = x + self.drop(self.ffn_added_norm(self.ffn(self.ffn_norm(x))))
        return x


class ParallelBlock(Block):
    """All sub-layers read the same stream at once (arxiv.org/abs/2204.02311)."""

    def forward(self, x, sight, cache=None):
        added = self.self_attend(self.attention_norm(x), sight, cache) + self.ffn(self.ffn_norm(x))
        if sight.memory is not None:
            added = added + self.cross_attend(self.cross_norm(x), sight, cache)
        x = x + self.drop(added)
        return x


BLOCKS = {"pre": PreNormBlock, "post": PostNormBlock, "sandwich": SandwichBlock, "parallel": ParallelBlock}
