"""Stack: x = block(x) for each block, between what is done to the embeddings (a position encoding
that is added, a norm, dropout) and a final norm. All blocks share one position encoding and one
mask, unless layers.py lets them differ."""

from collections import UserDict
from typing import Any

import torch
from torch import Tensor, nn

from configs.registry import build
from configs.schema import ModelConfig
from model.attend import NO_MASK, Mask
from model.attention import Attention
from model.bigrams import Bigrams
from model.block import AttentionContext, Block

# dicts of kinds, such as ATTENTIONS, come from the last file that adds to them
from model.blocks import BLOCKS
from model.cache import Caches, KVCache, Slots
from model.cross import make_cross
from model.masks import cast_for, make_mask, renumbered
from model.mla import ATTENTIONS
from model.moe import FFNS
from model.norm import norm_factory
from model.positions import POSITIONS


class Stack(nn.Module):
    """Position encoding, n_layers blocks and a final norm; with memory_width, the blocks have
    cross-attention."""

    def __init__(self, config: ModelConfig, *, causal: bool, memory_width: int | None = None):
        super().__init__()
        # build() gives each value to the parts that have a parameter of its name, which no config
        # may set. With cross-attention, make_block() replaces `cross`, and make_cross() `memory`
        shared = {"causal": causal, "memory": None, "cross": None}

        for name in ("d_model", "n_heads", "n_layers", "context_length", "dropout"):
            shared[name] = getattr(config, name)

        self.causal = causal
        self.configs = self.layer_configs(config)
        blocks = []

        for i, layer_config in enumerate(self.configs):
            own = {"layer": i, "norm": norm_factory(layer_config)}
            blocks.append(make_block(layer_config, shared | own, memory_width))

        self.blocks: Any = nn.ModuleList(blocks)
        self.make_positions(config, shared)

        norm = norm_factory(config)
        self.embedding_norm = norm() if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.bigrams = Bigrams(config.bigrams, config.d_model) if config.bigrams else None
        self.final_norm = norm() if blocks[-1].needs_final_norm else nn.Identity()

    def layer_configs(self, config: ModelConfig) -> list[ModelConfig]:
        return [config] * config.n_layers

    def make_positions(self, config: ModelConfig, shared: dict) -> None:
        attention = self.blocks[0].attention
        shared = shared | {"rotary_dim": attention.rotary_dim}
        self.position = build("model.position", POSITIONS, config.position, shared)
        # (position encoding, window) of each layer; here all layers share one context
        self.context_keys = [(self.position, attention.sliding_window)] * len(self.blocks)

    def new_caches(self, size: int) -> Caches:
        """Make caches for decoding up to `size` tokens."""
        slots = Slots(size)
        layers = [block.new_states(slots) for block in self.blocks]
        if self.bigrams is not None:
            layers[0]["bigrams"] = KVCache(slots)  # they stand before the first layer
        return Caches(slots, layers)

    def forward(
        self,
        x: Tensor,
        *,
        tokens: Tensor | None = None,
        visible: Tensor | None = None,
        documents: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask = NO_MASK,
        caches: Caches | None = None,
    ) -> Tensor:
        """tokens: (B, T), for parts that read them. visible: (B, S or more), false at padding, with
        a column for each cached token; once given, it must be given at every later step. documents:
        (B, T), the document number of each token, ascending: each document is treated as if alone.

        A slot is where a token is stored; its position is its number in its text. In a decoder, if
        nothing is cached or padded and there are no documents, both are 0 to T - 1."""
        q_slots = k_slots = torch.arange(x.shape[1], device=x.device)
        if caches:
            q_slots, k_slots = caches.slots.reserve(x)
        q_pos, k_pos = self.position_numbers(q_slots, k_slots, visible, documents)
        common = AttentionContext(
            memory=memory,
            memory_mask=memory_mask,
            visible=None if visible is None else visible[:, q_slots],
            documents=documents,
            tokens=tokens,
            shared=UserDict(),  # FSDP would copy a dict: what a layer adds would be lost
        )
        contexts = self.make_contexts(common, x, q_pos, k_pos, visible, caches)

        x = self.position.embed(x, q_pos)
        x = self.drop(self.embedding_norm(x))
        if self.bigrams is not None:
            cache = caches.layers[0]["bigrams"] if caches else None
            x = self.bigrams(x, tokens, q_slots, q_pos, cache)

        for i, block in enumerate(self.blocks):
            states = caches.layers[i] if caches else {}
            x = block(x, contexts[i]._replace(states=states))
        x = self.final_norm(x)
        return x

    def make_contexts(
        self,
        common: AttentionContext,
        x: Tensor,
        q_pos: Tensor,
        k_pos: Tensor,
        visible: Tensor | None,
        caches: Caches | None,
    ) -> list[AttentionContext]:
        """The context of each layer: `common` with a mask and a rotation. Layers with the same
        position encoding and window share one."""
        rotations: Any = {}
        contexts = {}
        for encoding, window in dict.fromkeys(self.context_keys):  # in order, unlike a set
            if encoding not in rotations:
                rotations[encoding] = encoding.rotary(x, q_pos)

            seen = caches.slots.seen(window) if caches else slice(None)
            mask = self.mask(
                x,
                q_pos,
                k_pos[:, seen],
                sliding_window=window,
                visible=None if visible is None else visible[:, seen],
                documents=common.documents,
                bias=encoding.bias(q_pos, k_pos[:, seen]),
            )
            contexts[encoding, window] = common._replace(mask=mask, rotate=rotations[encoding])
        return [contexts[key] for key in self.context_keys]

    def mask(self, x: Tensor, q_pos: Tensor, k_pos: Tensor, **options: Any) -> Mask:
        """The mask of self-attention, in its cheapest form. options: those of make_mask, which hide
        more than later tokens or add a bias; None does neither."""
        # as many queries as keys: torch has a flag that hides later tokens. A single query is the
        # newest token: none is later (but in replay.py, which hides empty slots by `visible`)
        is_square = q_pos.shape == k_pos.shape
        is_plain = all(option is None for option in options.values())
        if is_plain and (is_square or q_pos.shape[1] == 1):
            return Mask(causal=self.causal and is_square)
        return cast_for(x, make_mask(q_pos, k_pos, causal=self.causal, **options))

    def position_numbers(
        self, q_slots: Tensor, k_slots: Tensor, visible: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Positions of the new tokens, (1|B, T), and of all keys with the cached ones, (1|B, S)."""
        limit = self.position.max_positions
        if limit is not None and len(k_slots) > limit:
            raise ValueError(f"{len(k_slots)} positions, but model.context_length is {limit}")

        if visible is None and documents is None:
            return q_slots[None], k_slots[None]
        return renumbered(q_slots, k_slots, visible, documents)


def make_block(config: ModelConfig, shared: dict, memory_width: int | None) -> Block:
    attention = build("model.attention", ATTENTIONS, config.attention, shared)
    if not isinstance(attention, Attention):
        name = type(attention).__name__
        raise ValueError(f"{name} is no attention: let it inherit model.attention.Attention")

    ffn = build("model.ffn", FFNS, config.ffn, shared)
    parts = shared | {"attention": attention, "ffn": ffn}
    if memory_width is not None:
        parts["cross"] = make_cross(config, shared, memory_width)
    return build("model.block", BLOCKS, config.block, parts)
