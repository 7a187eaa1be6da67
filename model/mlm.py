"""The layer of BERT's heads between the last block and the output projection."""

import torch
from torch import Tensor, nn

from model.feedforward import ACTIVATIONS
from model.norm import MakeNorm


class MLMTransform(nn.Module):
    """For masked language modeling it has a norm, for classes mostly not
    (arxiv.org/abs/1810.04805)."""

    def __init__(self, d_model: int, activation: str, norm: MakeNorm, has_norm: bool):
        super().__init__()
        self.activation = (ACTIVATIONS | {"tanh": torch.tanh})[activation]
        self.dense = nn.Linear(d_model, d_model)
        self.norm = norm(d_model) if has_norm else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))
