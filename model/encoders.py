"""Transformers with an encoder: BERT is one, T5 has one for its source."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from configs.schema import ModelConfig
from model.attend import Mask
from model.cache import Caches
from model.embedding import Embedding
from model.masks import cast_for
from model.transformer import ARCHITECTURES, Transformer, make_embedding, make_stack


class Encoder(Transformer):
    """tokens, visible: (B, T). types, (B, T): segment ids, for a model with segment embeddings."""

    kind = "encoder"

    def make_stacks(self, config: ModelConfig, shared: dict) -> None:
        self.stack = make_stack(config, causal=False)

    def hidden(
        self, tokens: Tensor, *, visible: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """The last hidden states. Of a classifier with pooling, all positions have the same vector:
        the mean over the text, without its padding."""
        x = self.stack(self.embedding(tokens, types), tokens=tokens, visible=visible)

        if self.classes and self.head.pooling == "mean":
            is_text_BT = torch.ones_like(tokens) if visible is None else visible
            sum_BC = (x.float() * is_text_BT[..., None]).sum(1)
            mean_BC = sum_BC / is_text_BT.sum(1, keepdim=True)
            x = mean_BC[:, None].type_as(x).expand_as(x)
        return x


class EncoderDecoder(Transformer):
    """source, source_visible: (B, S). tokens: (B, T), the target so far."""

    kind = "encoder_decoder"

    def make_stacks(self, config: ModelConfig, shared: dict) -> None:
        if config.cross_attention is None:
            raise ValueError(f"an {self.kind} needs attention@model.cross_attention, such as mha")
        own_sizes = {name: n for name, n in vars(config.encoder).items() if n is not None}
        encoder = replace(config, **own_sizes)

        # the decoder comes first: adapt=freeze takes the first stack
        self.decoder = make_stack(config, causal=True, memory_width=encoder.d_model)
        self.encoder = make_stack(encoder, causal=False)

        # source and target share an embedding if they have the same width
        self.source_embedding: Embedding | None = None
        if encoder.d_model != config.d_model:
            shared = shared | {"d_model": encoder.d_model}
            self.source_embedding = make_embedding(config, shared)

    def new_caches(self, size: int) -> Caches:
        return self.decoder.new_caches(size)

    def encode(self, source: Tensor, *, visible: Tensor | None = None) -> Tensor:
        embed = self.source_embedding or self.embedding
        return self.encoder(embed(source), tokens=source, visible=visible)

    def decode(
        self,
        tokens: Tensor,
        memory: Tensor,
        *,
        memory_visible: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Run the decoder. memory_visible: false at the padding of the memory; the other options are
        those of Stack.forward."""
        if memory_visible is not None:
            bias_B11S = torch.where(memory_visible[:, None, None, :], 0.0, float("-inf"))
            options["memory_mask"] = cast_for(memory, Mask(bias_B11S))
        return self.decoder(self.embedding(tokens), tokens=tokens, memory=memory, **options)

    def hidden(
        self, source: Tensor, tokens: Tensor, *, source_visible: Tensor | None = None
    ) -> Tensor:
        memory_BSC = self.encode(source, visible=source_visible)
        return self.decode(tokens, memory_BSC, memory_visible=source_visible)


ARCHITECTURES["encoder"] = Encoder
ARCHITECTURES["encoder_decoder"] = EncoderDecoder
