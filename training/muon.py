"""Muon (kellerjordan.github.io/posts/muon) for the hidden matrices. It makes the updates of
torch.optim.Muon, but several matrices of one shape together: fewer kernels, which is faster on a
GPU. A parameter may be a stack of matrices."""

import math
from functools import cache
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from model.cpu import Eager, fast_bf16
from training.distributed import is_sharded, like, local, whole

AT_ONCE = 8  # matrices: more would need more memory, and gain little
ITERATIONS = 5  # of Newton and Schulz
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(Eager, Optimizer):
    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def start_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.grad is not None]
            matrices.sort(key=lambda p: p.shape)
            for _, same_shape in groupby(matrices, key=lambda p: p.shape):
                params = list(same_shape)
                at_once = max(1, AT_ONCE // math.prod(params[0].shape[:-2]))
                for start in range(0, len(params), at_once):
                    self.update(params[start : start + at_once], group)

    def update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Nesterov momentum, orthogonalized."""
        n_rows, n_columns = params[0].shape[-2:]
        gradients = [local(p.grad) for p in params]
        buffers = [local(self.state[p]["momentum_buffer"]) for p in params]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        updates = list(torch._foreach_lerp(gradients, buffers, group["momentum"]))

        if dist.is_initialized():
            updates = orthogonalize_in_turn(updates, params)
        else:
            updates = list(newton_schulz(torch.stack(updates)))

        weights = [local(p) for p in params]
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        scale = max(1, n_rows / n_columns) ** 0.5
        torch._foreach_add_(weights, updates, alpha=-group["lr"] * scale)


def newton_schulz(x: Tensor) -> Tensor:
    """Roughly the nearest orthogonal matrices: each iteration moves the singular values closer to
    1."""
    a, b, c = COEFFICIENTS
    shape = x.shape
    dtype = x.dtype
    x = x.flatten(0, -3)
    is_tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if is_tall else x).to(matmul_dtype(x.device.type))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        square = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, square, x, beta=a)
    return (x.mT if is_tall else x).to(dtype).view(shape)


@cache
def matmul_dtype(device: str) -> torch.dtype:
    slow_bf16 = device == "mps" or (device == "cpu" and not fast_bf16())
    return torch.float32 if slow_bf16 else torch.bfloat16


def orthogonalize_in_turn(updates: list[Tensor], params: list[Any]) -> list[Tensor]:
    """Each process orthogonalizes one of `size` matrices at a time, and all exchange the results;
    with FSDP, which has only a part of each, they gather these first."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    done = []
    for start in range(0, len(updates), size):
        turn = params[start : start + size]
        matrices = [whole(as_part(u, p)) for u, p in zip(updates[start:], turn, strict=False)]
        results = matrices[0].new_zeros(len(turn), *turn[0].shape)
        if rank < len(turn):
            results[rank] = newton_schulz(matrices[rank][None])[0]
        dist.all_reduce(results)
        done += [local(like(result, p)) for result, p in zip(results, turn, strict=True)]
    return done


def as_part(part: Tensor, p: Any) -> Tensor:
    """What this process has of a matrix, as a tensor that is sharded like the parameter, if it
    is."""
    if not is_sharded(p):
        return part
    return type(p).from_local(part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
