"""Embedding: token ids become vectors."""

import math
from typing import Annotated

import torch.nn as nn

from configs.registry import Bounds, Positive, construct
from model.feedforward import ACTIVATIONS
from model.norm import LayerNorm, norm_factory


class Embedding(nn.Module):
    """A row of the table for each token, times sqrt(d_model) where `scale_by_sqrt_d`, as in the paper of 2017. An
    encoder that reads several texts at once adds to each token a vector for the text it stands in
    (type_vocab_size)."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        scale_by_sqrt_d: bool = False,
        type_vocab_size: Annotated[int, Bounds(least=0)] = 0,
    ):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.types = nn.Embedding(type_vocab_size, d_model) if type_vocab_size > 0 else None
        self.scale = math.sqrt(d_model) if scale_by_sqrt_d else None

    def forward(self, tokens_BT, types_BT=None):
        if tokens_BT.ndim != 2:
            raise ValueError(f"tokens must be (B, T), rows of ids, and are {tuple(tokens_BT.shape)}")
        x = self.table(tokens_BT)
        if self.scale is not None:
            x = x * self.scale
        if self.types is None:
            if types_BT is not None:
                raise ValueError("types tell texts apart, but model.embedding.type_vocab_size is 0")
            return x
        return x + (self.types.weight[0] if types_BT is None else self.types(types_BT))


def make_embedding(config, vocab_size):
    sizes = {"vocab_size": vocab_size, "d_model": config.d_model}
    return construct("model.embedding", Embedding, config.embedding, sizes)


class MLMTransform(nn.Module):
    """The layer that BERT puts between its last block and the vocabulary (arxiv.org/abs/1810.04805)."""

    def __init__(self, d_model, activation, norm):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"transform is {activation!r}; choose one of: {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(d_model, d_model)
        self.norm = norm(d_model)

    def forward(self, hidden):
        return self.norm(self.activation(self.dense(hidden)))


class Head(nn.Module):
    """One linear map. Around it, where a family has them: BERT's transform (a layer of its own before the
    map), T5's scale by 1 / sqrt(d_model), a soft cap that keeps scores within +-logit_softcap."""

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        tie_weights: bool = False,
        bias: bool = False,
        scale_by_inv_sqrt_d: bool = False,
        logit_softcap: Positive | None = None,
        mlm_transform: str | None = None,
        norm=LayerNorm,
    ):
        super().__init__()
        self.tie_weights, self.logit_softcap = tie_weights, logit_softcap
        self.scale = d_model**-0.5 if scale_by_inv_sqrt_d else None
        self.transform = (
            MLMTransform(d_model, mlm_transform, norm) if mlm_transform is not None else nn.Identity()
        )
        self.map = nn.Linear(d_model, vocab_size, bias=bias)

    def tie(self, embedding):
        """Share the embedding's matrix, if the config says so."""
        if self.tie_weights:
            self.map.weight = embedding.table.weight

    def forward(self, hidden):
        hidden = self.transform(hidden)
        logits = self.map(hidden if self.scale is None else hidden * self.scale)
        return (
            logits
            if self.logit_softcap is None
            else self.logit_softcap * (logits / self.logit_softcap).tanh()
        )


def make_head(config, vocab_size):
    shared = {"d_model": config.d_model, "vocab_size": vocab_size, "norm": norm_factory(config)}
    return construct("model.head", Head, config.head, shared)
