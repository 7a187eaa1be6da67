"""Embedding and head: token ids become vectors, and vectors become logits over the vocabulary."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from configs.registry import Natural, Positive
from model.attend import soft_cap
from model.mlm import MLMTransform
from model.norm import LayerNorm, MakeNorm


class Embedding(nn.Module):
    """Token embeddings, optionally scaled as in the original Transformer, or with segment
    embeddings as in BERT."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        scale_by_sqrt_d: bool = False,
        type_vocab_size: Natural = 0,
    ):
        super().__init__()
        self.table = make_table(vocab_size, d_model)
        self.types = make_table(type_vocab_size, d_model) if type_vocab_size > 0 else None
        self.scale = math.sqrt(d_model) if scale_by_sqrt_d else None

    def forward(self, tokens_BT: Tensor, types_BT: Tensor | None = None) -> Tensor:
        if tokens_BT.ndim != 2:
            raise ValueError(f"tokens must be a tensor of (B, T), not {tuple(tokens_BT.shape)}")
        x = self.table(tokens_BT)
        if self.scale is not None:
            x = x * self.scale
        if self.types is not None or types_BT is not None:
            x = x + self.segment(types_BT)
        return x

    def segment(self, types_BT: Tensor | None) -> Tensor:
        """The segment embedding of each token; without types, all are of the first segment."""
        if self.types is None:
            raise ValueError("types need model.embedding.type_vocab_size above 0")
        return self.types.weight[0] if types_BT is None else self.types(types_BT)


def make_table(size: int, width: int) -> nn.Embedding:
    """A vector for each id. If meta is the default device, none is drawn: for that, torch would
    import torch._dynamo, which takes 0.8 s."""
    if torch.empty(0).is_meta:
        return nn.Embedding.from_pretrained(torch.empty(size, width), freeze=False)
    return nn.Embedding(size, width)


class Head(nn.Module):
    """A linear map to the vocabulary, or to the classes of a text, optionally with BERT's transform
    before it, T5's scale of 1 / sqrt(d_model), or a soft cap that keeps the logits within
    +-logit_softcap."""

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        tie_weights: bool = False,
        bias: bool = False,
        scale_by_inv_sqrt_d: bool = False,
        logit_softcap: Positive | None = None,
        mlm_transform: Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "tanh"] | None = None,
        mlm_norm: bool = True,
        pooling: Literal["mean"] | None = None,
        norm: MakeNorm = LayerNorm,
    ):
        super().__init__()
        self.tie_weights = tie_weights
        self.pooling = pooling  # of an encoder with classes
        self.logit_softcap = logit_softcap
        self.scale = d_model**-0.5 if scale_by_inv_sqrt_d else None

        self.transform: nn.Module = nn.Identity()
        if mlm_transform is not None:
            self.transform = MLMTransform(d_model, mlm_transform, norm, mlm_norm)
        self.map = nn.Linear(d_model, vocab_size, bias=bias)

    def tie(self, embedding: Embedding) -> None:
        """Share the embedding's matrix, if the config asks for it."""
        if self.tie_weights:
            self.map.weight = embedding.table.weight

    def features(self, hidden: Tensor) -> Tensor:
        """The input of the linear map."""
        hidden = self.transform(hidden)
        return hidden if self.scale is None else hidden * self.scale

    def forward(self, hidden: Tensor) -> Tensor:
        return soft_cap(self.map(self.features(hidden)), self.logit_softcap)
