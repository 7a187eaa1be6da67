"""BERT's head for masked language modeling."""

from torch import Tensor, nn

from model.feedforward import ACTIVATIONS
from model.norm import MakeNorm


class MLMTransform(nn.Module):
    """Between BERT's last block and its vocabulary projection (arxiv.org/abs/1810.04805)."""

    def __init__(self, d_model: int, activation: str, norm: MakeNorm):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(d_model, d_model)
        self.norm = norm(d_model)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))
