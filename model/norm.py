"""Norms: what keeps the numbers at one size. They act on the last axis, whatever the others are."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from configs.registry import Positive, build


def cast(parameter, values):
    # numbers and weights of two types, as autocast makes them, would miss the fast kernel
    return None if parameter is None else parameter.to(values.dtype)


class Norm(nn.Module):
    """The learned gain and offset that both kinds share; either can be left out."""

    def __init__(self, width: int, eps: Positive = 1e-5, weight: bool = True, bias: bool = False):
        super().__init__()
        self.width, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None


class LayerNorm(Norm):
    """Mean zero, variance one (arxiv.org/abs/1607.06450)."""

    def forward(self, values):
        weight, bias = cast(self.weight, values), cast(self.bias, values)
        return F.layer_norm(values, self.width, weight, bias, self.eps)


class RMSNorm(Norm):
    """Mean square one; the mean is left alone (arxiv.org/abs/1910.07467)."""

    def forward(self, values):
        normed = F.rms_norm(values, self.width, cast(self.weight, values), self.eps)
        return normed if self.bias is None else normed + cast(self.bias, values)


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def norm_factory(config):
    """A function that makes the model's norm: for the stream, or for vectors of another width."""

    def norm(width=config.d_model):
        return build("model.norm", NORMS, config.norm, {"width": width})

    norm()  # what is wrong with it is said here, not in the name of the part that asks for one
    return norm
