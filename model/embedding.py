"""Embedding: token ids become vectors."""

import math

import torch.nn as nn

from model.build import construct, require_above


class Embedding(nn.Module):
    """A row of the table for each token, times sqrt(d_model) where `scaled`, as in the paper of 2017. An
    encoder that reads several texts at once adds to each token a vector for the text it stands in
    (token_types)."""

    def __init__(self, vocab_size: int, d_model: int, scaled: bool = False, token_types: int = 0):
        super().__init__()
        require_above(0, vocab_size=vocab_size, d_model=d_model)
        if token_types < 0:
            raise ValueError(f"token_types must be at least 0 and is {token_types}")
        self.table = nn.Embedding(vocab_size, d_model)
        self.types = nn.Embedding(token_types, d_model) if token_types > 0 else None
        self.scale = math.sqrt(d_model) if scaled else None

    def forward(self, tokens_BT, types_BT=None):
        if tokens_BT.ndim != 2:
            raise ValueError(f"tokens must be (B, T), rows of ids, and are {tuple(tokens_BT.shape)}")
        x = self.table(tokens_BT)
        if self.scale is not None:
            x = x * self.scale
        if self.types is None:
            if types_BT is not None:
                raise ValueError("types tell texts apart, but model.embedding.token_types is 0")
            return x
        return x + (self.types.weight[0] if types_BT is None else self.types(types_BT))


def make_embedding(config, vocab_size):
    sizes = {"vocab_size": vocab_size, "d_model": config.d_model}
    return construct("model.embedding", Embedding, config.embedding, sizes)
