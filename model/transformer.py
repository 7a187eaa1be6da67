"""Transformer: a stack of blocks, and the three architectures that are made of stacks."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from configs.registry import Registry, build, construct
from configs.schema import ModelConfig
from model.attend import make_cross_mask, make_mask
from model.attention import ATTENTIONS
from model.block import BLOCKS, AttentionContext, Block
from model.cache import KVCache, LayerCache
from model.embedding import Embedding, Head
from model.init import initialize_weights
from model.layers import layer_configs
from model.moe import FFNS
from model.norm import norm_factory
from model.position import POSITIONS, Position, Rotate

Caches = list[LayerCache]


def make_block(config: ModelConfig, shared: dict[str, Any], memory_width: int | None) -> Block:
    parts = dict(shared)
    parts["attention"] = build("model.attention", ATTENTIONS, config.attention, shared)
    parts["ffn"] = build("model.ffn", FFNS, config.ffn, shared)
    if memory_width is not None:
        widths = shared | {"memory": (memory_width, memory_width)}
        node = config.cross_attention
        parts["cross"] = build("model.cross_attention", ATTENTIONS, node, widths, needs="memory")
    return build("model.block", BLOCKS, config.block, parts)


class ContextKey(NamedTuple):
    """What decides the context of a layer. Layers that agree in it share one mask and one rotation:
    Gemma 3 has two contexts, that of its layers with a window, and that of the others."""

    position: int  # an index into the encodings of the stack
    sliding_window: int | None
    sinks: int | None


class Stack(nn.Module):
    """Position encoding, n_layers blocks and a final norm; with memory_width, blocks have
    cross-attention."""

    def __init__(self, config: ModelConfig, *, causal: bool, memory_width: int | None = None):
        super().__init__()
        norm = norm_factory(config)
        # no config can set what is named here
        shared: dict[str, Any] = {"causal": causal, "memory": None, "cross": None}
        for name in ("d_model", "n_heads", "n_layers", "context_length", "dropout"):
            shared[name] = getattr(config, name)

        self.layers = layer_configs(config)
        blocks = []
        for i, layer in enumerate(self.layers):
            own = {"layer": i, "norm": norm_factory(layer)}
            blocks.append(make_block(layer, shared | own, memory_width))

        self.causal = causal
        self.blocks = nn.ModuleList(blocks)
        self.make_positions(config, shared)
        self.embedding_norm = norm() if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.final_norm = norm() if blocks[-1].needs_final_norm else nn.Identity()

    def make_positions(self, config: ModelConfig, shared: dict[str, Any]) -> None:
        """self.position is that of the model, and the only one that adds to the embeddings."""
        attentions: list[Any] = [block.attention for block in self.blocks]
        distinct = [(config.position, attentions[0].rotary_dim)]
        self.context_keys = []  # of each layer
        for layer, attention in zip(self.layers, attentions, strict=True):
            own = (layer.position, attention.rotary_dim)
            if own not in distinct:
                distinct.append(own)
            index = distinct.index(own)
            key = ContextKey(index, attention.sliding_window, attention.sinks)
            self.context_keys.append(key)

        encodings: list[Position] = []
        for node, rotary_dim in distinct:
            sizes = shared | {"rotary_dim": rotary_dim}
            encodings.append(build("model.position", POSITIONS, node, sizes))
        self.position, *others = encodings
        for encoding in others:
            if type(encoding).embed is not Position.embed:
                name = type(encoding).__name__
                raise ValueError(f"{name} adds to the embeddings: layers cannot differ in it")
        self.layer_positions = nn.ModuleList(others)

    def new_caches(self, size: int) -> Caches:
        """For decoding up to `size` tokens."""
        caches = []
        for key in self.context_keys:
            # a ring would drop the sinks, which lie at other slots in each row of a padded batch
            window = key.sliding_window if key.sinks is None else None
            caches.append(LayerCache(KVCache(size, window), cross_attn=KVCache()))
        return caches

    def forward(
        self,
        x: Tensor,
        *,
        visible: Tensor | None = None,
        prefix: Tensor | None = None,
        documents: Tensor | None = None,
        memory: Tensor | None = None,
        memory_visible: Tensor | None = None,
        caches: Caches | None = None,
    ) -> Tensor:
        """visible: (B, S), false at padding, with a column for each cached token; once given, it
        must be given at every later step. prefix: (B,), see make_mask. documents: (B, T), the
        number of the document of each token, in order: each is as if alone. memory_visible: as
        visible, for the memory."""
        encodings: list[Position] = [self.position, *self.layer_positions]
        rotations: dict[int, Rotate | None] = {}
        contexts: dict[ContextKey, AttentionContext] = {}
        memory_mask = make_cross_mask(memory_visible).cast_for(x)

        for i, key in enumerate(self.context_keys):
            if key in contexts:
                continue
            cache = caches[i].self_attn if caches else KVCache()
            q_pos, k_pos, keys_visible = self.place(x, visible, documents, cache)

            encoding = encodings[key.position]
            if key.position not in rotations:
                rotations[key.position] = encoding.rotary(x, q_pos)
            rotate = rotations[key.position]
            mask = make_mask(
                q_pos,
                k_pos,
                causal=self.causal,
                sliding_window=key.sliding_window,
                sinks=key.sinks,
                prefix=prefix,
                visible=keys_visible,
                documents=documents,
                bias=encoding.bias(q_pos, k_pos),
            ).cast_for(x)
            contexts[key] = AttentionContext(mask, rotate, memory, memory_mask)

        x = self.position.embed(x, q_pos)
        x = self.drop(self.embedding_norm(x))
        for i, block in enumerate(self.blocks):
            x = block(x, contexts[self.context_keys[i]], caches and caches[i])
        return self.final_norm(x)

    def place(
        self, x: Tensor, visible: Tensor | None, documents: Tensor | None, cache: KVCache
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Positions of the new tokens; those of all keys including cached ones, and whether they
        are visible."""
        q_slots, k_slots = cache.slots(x.shape[1], x.device)
        length = cache.length + x.shape[1]
        limit = self.position.max_positions
        if limit is not None and length > limit:
            raise ValueError(f"{length} positions, but model.context_length is {limit}")

        if documents is not None:  # searchsorted finds the first token of the same document
            pos = q_slots - torch.searchsorted(documents, documents)
            return pos, pos, None

        if visible is None:
            return q_slots[None], k_slots[None], None

        # count from the first visible token, so that left padding changes nothing
        first_B1 = visible.int().argmax(-1, keepdim=True)
        if cache.is_ring:
            visible = visible[:, k_slots.clamp(min=0)] & (k_slots >= 0)
        return q_slots - first_B1, k_slots - first_B1, visible


def make_embedding(config: ModelConfig, sizes: dict[str, Any]) -> Embedding:
    return construct("model.embedding: ", Embedding, config.embedding, sizes)


class Transformer(nn.Module):
    """Base of the architectures: hidden() gives the last hidden states, forward() their logits.
    `visible` is false at padding."""

    kind: str
    make_stacks: Callable[..., None]
    hidden: Callable[..., Tensor]
    # generate(prompts, *, tokenizer, ...) of a kind of your own, in place of decode()
    generate: Callable[..., Any] | None = None

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        sizes = {"d_model": config.d_model, "vocab_size": vocab_size, "norm": norm_factory(config)}
        self.context_length = config.context_length
        self.embedding = make_embedding(config, sizes)
        self.make_stacks(config, sizes)
        self.head: Head = construct("model.head: ", Head, config.head, sizes)

    def forward(self, *inputs: Tensor, **options: Any) -> Tensor:
        logits_BTV = self.head(self.hidden(*inputs, **options))
        return logits_BTV


class Decoder(Transformer):
    """tokens: (B, T). Pass caches from new_caches to continue from earlier tokens; visible, (B, S),
    covers them, too. prefix: (B,), of a prefix LM: how many of the first tokens see each other in
    both directions; by default all of the first call. documents: (B, T), for training: the number of
    the document of each token, which sees no other and counts positions from its first."""

    kind = "decoder"

    def make_stacks(self, config: ModelConfig, sizes: dict[str, Any]) -> None:
        self.stack = Stack(config, causal=True)
        self.prefix_lm = config.prefix_lm

    def new_caches(self, size: int) -> Caches:
        return self.stack.new_caches(size)

    def hidden(
        self,
        tokens: Tensor,
        *,
        visible: Tensor | None = None,
        prefix: Tensor | None = None,
        documents: Tensor | None = None,
        caches: Caches | None = None,
    ) -> Tensor:
        if documents is not None and (caches or visible is not None):
            raise ValueError("documents are for training: give neither caches nor visible")
        is_first = not (caches and caches[0].self_attn.length)
        if self.prefix_lm and prefix is None and is_first:
            prefix = torch.full_like(tokens[:, 0], tokens.shape[1])
        return self.stack(
            self.embedding(tokens),
            visible=visible,
            prefix=prefix,
            documents=documents,
            caches=caches,
        )


class Encoder(Transformer):
    """tokens, visible: (B, T). types, (B, T): segment ids, for a model with segment embeddings."""

    kind = "encoder"

    def make_stacks(self, config: ModelConfig, sizes: dict[str, Any]) -> None:
        self.stack = Stack(config, causal=False)

    def hidden(
        self, tokens: Tensor, *, visible: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        return self.stack(self.embedding(tokens, types), visible=visible)


class EncoderDecoder(Transformer):
    """source, source_visible: (B, S). tokens: (B, T), the target so far."""

    kind = "encoder_decoder"

    def make_stacks(self, config: ModelConfig, sizes: dict[str, Any]) -> None:
        own_sizes = {name: n for name, n in vars(config.encoder).items() if n is not None}
        encoder = replace(config, **own_sizes)

        self.decoder = Stack(config, causal=True, memory_width=encoder.d_model)
        self.encoder = Stack(encoder, causal=False)

        # source and target share an embedding if they have the same width
        self.source_embedding: Embedding | None = None
        if encoder.d_model != config.d_model:
            sizes = sizes | {"d_model": encoder.d_model}
            self.source_embedding = make_embedding(config, sizes)

    def new_caches(self, size: int) -> Caches:
        return self.decoder.new_caches(size)

    def encode(self, source: Tensor, *, visible: Tensor | None = None) -> Tensor:
        embed = self.source_embedding or self.embedding
        return self.encoder(embed(source), visible=visible)

    def decode(self, tokens: Tensor, memory: Tensor, **options: Any) -> Tensor:
        """The options are those of Stack.forward."""
        return self.decoder(self.embedding(tokens), memory=memory, **options)

    def hidden(
        self, source: Tensor, tokens: Tensor, *, source_visible: Tensor | None = None
    ) -> Tensor:
        memory_BSC = self.encode(source, visible=source_visible)
        return self.decode(tokens, memory_BSC, memory_visible=source_visible)


ARCHITECTURES: Registry[type[Transformer]] = Registry(
    decoder=Decoder,
    encoder=Encoder,
    encoder_decoder=EncoderDecoder,
)


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0) -> Transformer:
    """A new model. Its weights depend on the seed alone, not on the global random state."""
    check_config(config)
    # on the "meta" device nothing is drawn: torch would import torch._dynamo for it, for 0.8 s
    drawing = patch("torch.nn.init.normal_") if torch.empty(0).is_meta else nullcontext()
    with torch.random.fork_rng(devices=[]), drawing:
        torch.default_generator.manual_seed(seed)
        model = ARCHITECTURES[config.kind](config, vocab_size)
        model.head.tie(model.embedding)
        initialize_weights(model, config.init)
    return model


def check_config(config: ModelConfig) -> None:
    """Checks that involve more than one part of the model."""
    kind = config.kind
    if kind not in ARCHITECTURES:
        raise ValueError(f"model.kind is {kind!r}; choose one of: {', '.join(ARCHITECTURES)}")
    if kind == "encoder_decoder" and config.cross_attention is None:
        raise ValueError(f"an {kind} needs attention@model.cross_attention, such as mha")

    only_for = {
        "cross_attention": ("encoder_decoder", config.cross_attention is not None),
        "prefix_lm": ("decoder", config.prefix_lm),
        "encoder": ("encoder_decoder", any(vars(config.encoder).values())),
        "embedding.type_vocab_size": ("encoder", bool(config.embedding.get("type_vocab_size"))),
    }
    for key, (owner, is_set) in only_for.items():
        if is_set and kind != owner:
            raise ValueError(f"model.{key} is for an {owner}; model.kind is {kind}")
