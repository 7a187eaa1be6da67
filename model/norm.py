"""Norms, over the last axis."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from configs.registry import Positive, build


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


class RMSNormFunction(torch.autograd.Function):
    """F.rms_norm, which on a CPU takes twenty kernels for both passes, in ten: 4 % of a default step."""

    @staticmethod
    def forward(ctx, values, eps):
        exact = values.to(torch.promote_types(values.dtype, torch.float32))
        scale = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        scale = scale.square_().div_(values.shape[-1]).add_(eps).rsqrt_()
        normed = exact * scale
        ctx.save_for_backward(normed, scale)
        return normed.type_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        normed, scale = ctx.saved_tensors
        exact = grad.type_as(normed)
        along = (exact * normed).mean(-1, keepdim=True)
        return torch.addcmul(exact, normed, along, value=-1).mul_(scale).type_as(grad), None


class RMSNorm(Norm):
    """Mean square one, without centering (arxiv.org/abs/1910.07467)."""

    def normalize(self, values, weight, bias):
        if values.is_cpu and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            normed = RMSNormFunction.apply(values, self.eps)
            normed = normed if weight is None else normed * weight
        else:
            normed = F.rms_norm(values, self.width, weight, self.eps)
        return normed if bias is None else normed + bias


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def norm_factory(config):
    """A function that makes the model's norm, of width d_model unless another is given."""

    def norm(width=config.d_model):
        return build("model.norm", NORMS, config.norm, {"width": width})

    norm()  # an invalid config fails here, under the name of the norm and not of the part that uses it
    return norm
