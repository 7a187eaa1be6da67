"""Norms, over the last axis."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from configs.registry import Positive, build
from model.kernels import rms_norm


class Norm(nn.Module):
    """The gain and bias that both kinds have, each optional."""

    def __init__(self, width: int, eps: Positive = 1e-5, weight: bool = True, bias: bool = False):
        super().__init__()
        self.width, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, values):
        # under autocast the parameters are float32 and the values are not; the fused kernel needs one dtype
        weight, bias = (None if p is None else p.to(values.dtype) for p in (self.weight, self.bias))
        return self.normalize(values, weight, bias)


class LayerNorm(Norm):
    """Mean zero, variance one (arxiv.org/abs/1607.06450)."""

    def normalize(self, values, weight, bias):
        return F.layer_norm(values, self.width, weight, bias, self.eps)


class RMSNorm(Norm):
    """Mean square one, without centering (arxiv.org/abs/1910.07467)."""

    def normalize(self, values, weight, bias):
        normed = rms_norm(values, weight, self.eps)
        return normed if bias is None else normed + bias


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def norm_factory(config):
    """A function that makes the model's norm, of width d_model unless another is given."""

    def norm(width=config.d_model):
        return build("model.norm", NORMS, config.norm, {"width": width})

    norm()  # an invalid config fails here, under the name of the norm and not of the part that uses it
    return norm
