"""Stack: parts become depth. Vectors in, the same vectors knowing their context out."""

from dataclasses import asdict, replace

import torch
import torch.nn as nn

from configs.registry import build
from model.attend import make_cross_mask, make_mask
from model.attention import ATTENTIONS, KVDims
from model.block import BLOCKS, AttentionContext
from model.cache import KVCache, LayerCache
from model.embedding import make_embedding, make_head
from model.feedforward import FFNS
from model.norm import norm_factory
from model.position import POSITIONS


def make_block(config, shared, memory_width):
    attention = build("model.attention", ATTENTIONS, config.attention, shared | {"memory": None})
    ffn, cross = build("model.ffn", FFNS, config.ffn, shared), None
    if memory_width is not None:
        memory = {"memory": KVDims(memory_width, memory_width)}
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
        norm = norm_factory(config)
        shared = {"d_model": config.d_model, "n_heads": config.n_heads}
        shared |= {"dropout": config.dropout, "norm": norm}
        self.causal, self.has_memory = causal, memory_width is not None
        self.blocks = nn.ModuleList(make_block(config, shared, memory_width) for _ in range(config.n_layers))
        attention = self.blocks[0].attention
        shared |= {
            "context_length": config.context_length,
            "causal": causal,
            "rotary_dim": attention.rotary_dim,
        }
        self.sliding_window = attention.sliding_window
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
        sight = AttentionContext(
            mask=make_mask(
                q_pos,
                k_pos,
                causal=self.causal,
                sliding_window=self.sliding_window,
                visible=visible,
                bias=bias,
            ),
            rotate=self.position.rotary(x, q_pos),
            memory=memory,
            memory_mask=make_cross_mask(memory_visible),
        )
        x = self.drop(self.embedding_norm(self.position.embed(x, q_pos)))
        for i, block in enumerate(self.blocks):
            x = block(x, sight, caches and caches[i])
        return self.final_norm(x)

    def positions(self, x, visible, caches):
        """Where the new tokens stand, and where all do that they may look at. Counting starts at each row's
        first visible token, so a row means the same with and without padding before it."""
        start = caches[0].self_attn.length if caches else 0
        end = start + x.shape[1]
        if self.position.max_positions is not None and end > self.position.max_positions:
            raise ValueError(
                f"{end} positions, but model.context_length is {self.position.max_positions} and its learned positions end "
                f"there: give fewer tokens, or train with a larger model.context_length or position=rope"
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
        return [LayerCache(self_attn=KVCache(size), cross_attn=KVCache()) for _ in self.blocks]


class Decoder(nn.Module):
    """tokens, (B, T); visible, (B, T), false where they are padding; caches from new_caches, to go on from
    earlier tokens. `hidden` is what the head reads."""

    kind = "decoder"

    def __init__(self, config, vocab_size):
        super().__init__()
        self.context_length = config.context_length
        self.embedding = make_embedding(config, vocab_size)
        self.stack = Stack(config, causal=True)
        self.head = make_head(config, vocab_size)

    def hidden(self, tokens, *, visible=None, caches=None):
        return self.stack(self.embedding(tokens), visible=visible, caches=caches)

    def forward(self, tokens, *, visible=None, caches=None):
        logits_BTV = self.head(self.hidden(tokens, visible=visible, caches=caches))
        return logits_BTV

    def new_caches(self, size):
        return self.stack.new_caches(size)


class Encoder(nn.Module):
    """tokens, (B, T); visible, (B, T), false where they are padding; types, (B, T), the text each stands in,
    where there are two."""

    kind = "encoder"

    def __init__(self, config, vocab_size):
        super().__init__()
        self.context_length = config.context_length
        self.embedding = make_embedding(config, vocab_size)
        self.stack = Stack(config, causal=False)
        self.head = make_head(config, vocab_size)

    def hidden(self, tokens, *, visible=None, types=None):
        return self.stack(self.embedding(tokens, types), visible=visible)

    def forward(self, tokens, *, visible=None, types=None):
        logits_BTV = self.head(self.hidden(tokens, visible=visible, types=types))
        return logits_BTV


class EncoderDecoder(nn.Module):
    """source, (B, S), and tokens, (B, T), the answer so far; source_visible, (B, S), false where it is
    padding."""

    kind = "encoder_decoder"

    def __init__(self, config, vocab_size):
        super().__init__()
        self.context_length = config.context_length
        encoder = replace(config, **{size: n for size, n in asdict(config.encoder).items() if n is not None})
        self.embedding = make_embedding(config, vocab_size)
        self.decoder = Stack(config, causal=True, memory_width=encoder.d_model)
        try:
            self.encoder = Stack(encoder, causal=False)
        except ValueError as error:  # the same parts served the decoder, so it is the encoder's own sizes
            raise ValueError(f"model.encoder: {error}") from None
        # source and target share one table as long as they share its width
        shared = encoder.d_model == config.d_model
        self.source_embedding = None if shared else make_embedding(encoder, vocab_size)
        self.head = make_head(config, vocab_size)

    def encode(self, source, *, visible=None):
        embed = self.source_embedding or self.embedding
        return self.encoder(embed(source), visible=visible)

    def decode(self, tokens, memory, *, visible=None, memory_visible=None, caches=None):
        x = self.embedding(tokens)
        return self.decoder(x, visible=visible, memory=memory, memory_visible=memory_visible, caches=caches)

    def hidden(self, source, tokens, *, source_visible=None):
        memory_BSC = self.encode(source, visible=source_visible)
        return self.decode(tokens, memory_BSC, memory_visible=source_visible)

    def forward(self, source, tokens, *, source_visible=None):
        logits_BTV = self.head(self.hidden(source, tokens, source_visible=source_visible))
        return logits_BTV

    def new_caches(self, size):
        return self.decoder.new_caches(size)
