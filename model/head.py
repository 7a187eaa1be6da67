"""Head: vectors become a score for each word of the vocabulary."""

import torch.nn as nn

from model.build import construct, require_above
from model.feedforward import ACTIVATIONS
from model.norm import LayerNorm, norm_maker


class Transform(nn.Module):
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
    map), T5's scale by 1 / sqrt(d_model), a soft cap that keeps scores within +-softcap."""

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        tied: bool = False,
        bias: bool = False,
        scaled: bool = False,
        softcap: float | None = None,
        transform: str | None = None,
        norm=LayerNorm,
    ):
        super().__init__()
        require_above(0, softcap=softcap)
        self.tied, self.softcap = tied, softcap
        self.scale = d_model**-0.5 if scaled else None
        self.transform = Transform(d_model, transform, norm) if transform is not None else nn.Identity()
        self.map = nn.Linear(d_model, vocab_size, bias=bias)

    def tie(self, embedding):
        """Share the embedding's matrix, if the config says so."""
        if self.tied:
            self.map.weight = embedding.table.weight

    def forward(self, hidden):
        hidden = self.transform(hidden)
        logits = self.map(hidden if self.scale is None else hidden * self.scale)
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()


def make_head(config, vocab_size):
    shared = {"d_model": config.d_model, "vocab_size": vocab_size, "norm": norm_maker(config)}
    return construct("model.head", Head, config.head, shared)
