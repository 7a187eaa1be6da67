"""Transformer: embedding, blocks and head; the decoder, as of GPT and Llama."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from configs.registry import Registry, construct
from configs.schema import ModelConfig
from model.cache import Caches
from model.embedding import Embedding, Head
from model.init import SCHEMES, initialize_weights
from model.layers import LayeredStack
from model.norm import norm_factory
from model.stack import Stack


def make_stack(config: ModelConfig, **options: Any) -> Stack:
    kind = Stack if config.layers is None else LayeredStack
    return kind(config, **options)


def make_embedding(config: ModelConfig, shared: dict) -> Embedding:
    return construct("model.embedding: ", Embedding, config.embedding, shared)


class Transformer(nn.Module):
    """Base of the architectures: hidden() returns the last hidden states, forward() the logits."""

    kind: str
    make_stacks: Callable[..., None]
    hidden: Callable[..., Tensor]

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        shared = {"d_model": config.d_model, "vocab_size": vocab_size, "norm": norm_factory(config)}
        self.context_length = config.context_length
        self.embedding = make_embedding(config, shared)
        self.make_stacks(config, shared)
        self.classes = config.classes
        if config.classes is not None:
            shared["vocab_size"] = len(config.classes)
        self.head: Head = construct("model.head: ", Head, config.head, shared)

    def forward(self, *inputs: Tensor, **options: Any) -> Tensor:
        logits_BTV = self.head(self.hidden(*inputs, **options))
        return logits_BTV


class Decoder(Transformer):
    """tokens: (B, T). visible: (B, T), false at padding. Pass caches from new_caches to continue
    from earlier tokens; visible, (B, S), then covers these, too. documents: (B, T), for training:
    the document number of each token. A token sees only its own document, and positions restart in
    each."""

    kind = "decoder"

    def make_stacks(self, config: ModelConfig, shared: dict) -> None:
        self.stack = make_stack(config, causal=True)

    def new_caches(self, size: int) -> Caches:
        return self.stack.new_caches(size)

    def hidden(
        self,
        tokens: Tensor,
        *,
        visible: Tensor | None = None,
        documents: Tensor | None = None,
        caches: Caches | None = None,
    ) -> Tensor:
        if documents is not None and (caches or visible is not None):
            raise ValueError("documents are for training: give neither caches nor visible")

        return self.stack(
            self.embedding(tokens),
            tokens=tokens,
            visible=visible,
            documents=documents,
            caches=caches,
        )


ARCHITECTURES: Registry[type[Transformer]] = Registry(decoder=Decoder)  # encoders.py has the others


def build_model(config: ModelConfig, vocab_size: int, seed: int = 0) -> Transformer:
    """Build a new model. Its weights depend only on the seed, not on the global random state. On
    the meta device it has none: they come from a file or the main process."""
    is_new = not torch.empty(0).is_meta
    if is_new:
        check_config(config)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = ARCHITECTURES[config.kind](config, vocab_size)
        model.head.tie(model.embedding)
        if is_new:
            initialize_weights(model, config.init)
    return model


def check_config(config: ModelConfig) -> None:
    """Check what involves more than one part of the model."""
    if config.kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model.kind is {config.kind!r}; choose one of: {known}")

    base_kind = ARCHITECTURES[config.kind].kind
    if config.init not in SCHEMES:
        raise ValueError(f"model.init is {config.init!r}; choose one of: {', '.join(SCHEMES)}")

    only_for = {
        "cross_attention": ("encoder_decoder", config.cross_attention is not None),
        "encoder": ("encoder_decoder", any(vars(config.encoder).values())),
        "embedding.type_vocab_size": ("encoder", bool(config.embedding.get("type_vocab_size"))),
    }

    for key, (owner, is_set) in only_for.items():
        if is_set and base_kind != owner:
            raise ValueError(f"model.{key} is for an {owner}; model.kind is {base_kind}")
