"""Muon: a matrix moves along the orthogonal one nearest its momentum (kellerjordan.github.io/posts/muon)."""

from functools import cache
from itertools import groupby

import torch

from training.precision import fast_bf16, processor


class Muon(torch.optim.Muon):
    """torch's own takes one matrix after another, in bfloat16 wherever it runs. Here those of one shape go
    together, in numbers that the device is fast with: of a small model's step that saves up to a quarter."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            given = sorted((p for p in group["params"] if p.grad is not None), key=lambda p: p.shape)
            for _, matrices in groupby(given, key=lambda p: p.shape):
                self.move(list(matrices), group)

    def move(self, matrices, group):
        momentum, grads = group["momentum"], [matrix.grad for matrix in matrices]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        buffers = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        ways = orthogonal(torch.stack(torch._foreach_lerp(grads, buffers, momentum)), group)
        rows, columns = matrices[0].shape
        if group["weight_decay"]:
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(ways), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonal(x, group):
    """Newton and Schulz: each step brings the singular values nearer to 1, in few steps only roughly."""
    a, b, c = group["ns_coefficients"]
    dtype, tall = x.dtype, x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).to(fast_dtype(x.device.type))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        square = x @ x.mT
        square = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, square, x, beta=a)
    return (x.mT if tall else x).to(dtype)


@cache
def fast_dtype(device):
    slow = device == "mps" or (device == "cpu" and not fast_bf16(processor()))
    return torch.float32 if slow else torch.bfloat16
