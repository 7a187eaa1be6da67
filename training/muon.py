"""Muon (kellerjordan.github.io/posts/muon) for the hidden matrices. Its updates are those of
torch.optim.Muon, but matrices of one shape are updated together: fewer kernels, which is faster on
a GPU. A parameter may be a stack of matrices."""

import math
from collections import defaultdict
from inspect import unwrap
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from model.cpu import fast_bf16
from training.fsdp import in_turn

AT_ONCE = 8  # matrices: more would need more memory, and gain little
ITERATIONS = 5  # of Newton-Schulz
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Eager:
    """An optimizer's methods without torch's wrappers, which import torch._dynamo before the first
    step and take 1.1 s for it."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)


class Muon(Eager, Optimizer):
    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def start_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, params in by_shape.items():
                at_once = max(1, AT_ONCE // math.prod(shape[:-2]))
                for start in range(0, len(params), at_once):
                    self.update(params[start : start + at_once], group)

    def update(self, params: list[Tensor], group: dict) -> None:
        """Subtract the orthogonalized Nesterov momentum. The gradients are overwritten."""
        gradients: list = [p.grad for p in params]
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        torch._foreach_lerp_(gradients, buffers, group["momentum"])  # now Nesterov's momentum

        if dist.is_initialized():  # the processes share the work
            updates = in_turn(newton_schulz, gradients, muon_dtype(params[0].device.type))
        else:
            updates = list(newton_schulz(torch.stack(gradients)))

        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        n_rows, n_columns = params[0].shape[-2:]
        scale = max(1, n_rows / n_columns) ** 0.5
        torch._foreach_add_(params, updates, alpha=-group["lr"] * scale)


def newton_schulz(matrices: Tensor) -> Tensor:
    """Approximately the nearest orthogonal matrices: the iterations bring all singular values
    near 1."""
    a, b, c = COEFFICIENTS
    x = matrices.flatten(0, -3)  # (n, rows, columns); two axes of experts become one
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x.to(muon_dtype(x.device.type))
    norms = x.norm(dim=(-2, -1), keepdim=True)
    x = x / norms.clamp(min=1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)  # b s + c s s
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a x + polynomial x
    if is_tall:
        x = x.mT
    return x.to(matrices.dtype).view(matrices.shape)


def muon_dtype(device: str) -> torch.dtype:
    slow_bf16 = device == "mps" or (device == "cpu" and not fast_bf16())
    return torch.float32 if slow_bf16 else torch.bfloat16
