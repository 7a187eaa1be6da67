"""Normalization over the last axis."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.registry import Positive, Registry, build
from configs.schema import ModelConfig

MakeNorm = Callable[..., nn.Module]


class Norm(nn.Module):
    """Base of both kinds: their weight and bias, each optional."""

    def __init__(self, width: int, eps: Positive = 1e-5, weight: bool = True, bias: bool = False):
        super().__init__()
        self.width = (width,)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def weight_and_bias(self, values: Tensor) -> list[Tensor | None]:
        """Weight and bias in the dtype of the values, as fused kernels need. Under autocast the
        parameters have another."""
        return [p if p is None else p.to(values.dtype) for p in (self.weight, self.bias)]


class LayerNorm(Norm):
    """Normalize to mean zero and variance one (arxiv.org/abs/1607.06450)."""

    def forward(self, values: Tensor) -> Tensor:
        weight, bias = self.weight_and_bias(values)
        return F.layer_norm(values, self.width, weight, bias, self.eps)


class RMSNorm(Norm):
    """Normalize to mean square one, without centering (arxiv.org/abs/1910.07467)."""

    def forward(self, values: Tensor) -> Tensor:
        weight, bias = self.weight_and_bias(values)
        normed = F.rms_norm(values, self.width, weight, self.eps)
        return normed if bias is None else normed + bias


NORMS = Registry(layernorm=LayerNorm, rmsnorm=RMSNorm)


def norm_factory(config: ModelConfig) -> MakeNorm:
    """A function that makes the model's norm, with width d_model unless another is given."""

    def norm(width: int = config.d_model) -> nn.Module:
        return build("model.norm", NORMS, config.norm, {"width": width})

    return norm
