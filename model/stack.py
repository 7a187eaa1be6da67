"""Stack: parts become depth. Vectors in, the same vectors knowing their context out."""

import torch
import torch.nn as nn

from model.attend import make_mask, make_memory_mask
from model.attention import ATTENTIONS, Widths
from model.block import BLOCKS, Sight
from model.build import build
from model.cache import Cache, LayerCache
from model.feedforward import FFNS
from model.norm import norm_maker
from model.position import POSITIONS


def make_block(config, shared, memory_width):
    attention = build("model.attention", ATTENTIONS, config.attention, shared | {"memory": None})
    ffn, cross = build("model.ffn", FFNS, config.ffn, shared), None
    if memory_width is not None:
        memory = {"memory": Widths(memory_width, memory_width)}
        cross = build(
            "model.cross_attention", ATTENTIONS, config.cross_attention, shared | memory, needs="memory"
        )
    parts = {"attention": attention, "cross": cross, "ffn": ffn}
    return build("model.block", BLOCKS, config.block, shared | parts)


class Stack(nn.Module):
    """Position, then n_layers blocks, then a last norm where the blocks leave one to do. With memory_width,
    each block also looks at a memory of that width."""

    def __init__(self, config, *, causal, memory_width=None):
        super().__init__()
        norm = norm_maker(config)
        shared = {"d_model": config.d_model, "n_heads": config.n_heads}
        shared |= {"dropout": config.dropout, "norm": norm}
        self.causal, self.has_memory = causal, memory_width is not None
        self.blocks = nn.ModuleList(make_block(config, shared, memory_width) for _ in range(config.n_layers))
        attention = self.blocks[0].attention
        shared |= {"context": config.context, "causal": causal, "rotary_width": attention.rotary_width}
        self.window = attention.window
        self.position = build("model.position", POSITIONS, config.position, shared)
        self.embedding_norm = norm() if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.final_norm = norm() if self.blocks[-1].needs_final_norm else nn.Identity()

    def forward(self, x, *, visible=None, memory=None, memory_visible=None, caches=None):
        """visible, (B, S): false where a token, cached ones included, is padding; given once, it is given at
        every further step. memory_visible likewise."""
        if (memory is not None) != self.has_memory:
            raise ValueError("a memory goes with a stack that has cross-attention, and such a stack with one")
        q_pos, k_pos = self.positions(x, visible, caches)
        bias = self.position.bias(q_pos, k_pos)
        sight = Sight(
            mask=make_mask(q_pos, k_pos, causal=self.causal, window=self.window, visible=visible, bias=bias),
            rotate=self.position.rotation(x, q_pos),
            memory=memory,
            memory_mask=make_memory_mask(memory_visible),
        )
        x = self.drop(self.embedding_norm(self.position.embed(x, q_pos)))
        for i, block in enumerate(self.blocks):
            x = block(x, sight, caches and caches[i])
        return self.final_norm(x)

    def positions(self, x, visible, caches):
        """Where the new tokens stand, and where all do that they may look at. Counting starts at each row's
        first visible token, so a row means the same with and without padding before it."""
        start = caches[0].own.length if caches else 0
        end = start + x.shape[1]
        if self.position.limit is not None and end > self.position.limit:
            raise ValueError(
                f"{end} positions, but model.context is {self.position.limit} and its learned positions end "
                f"there: give fewer tokens, or train with a larger model.context or position=rope"
            )
        if visible is not None and (visible.dtype != torch.bool or visible.shape != (len(x), end)):
            raise ValueError(
                f"visible must be true or false for each token, cached ones included: a bool tensor of "
                f"({len(x)}, {end}), not {visible.dtype} of {tuple(visible.shape)}"
            )
        k_pos = torch.arange(end, device=x.device)[None]
        if visible is not None:
            first = visible.int().argmax(-1, keepdim=True)  # of the visible tokens in each row
            k_pos = k_pos - first
        return k_pos[:, start:], k_pos

    def new_caches(self, size):
        return [LayerCache(own=Cache(size), cross=Cache()) for _ in self.blocks]
