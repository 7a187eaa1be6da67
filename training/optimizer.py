"""Muon: a matrix moves along the orthogonal one nearest its momentum (kellerjordan.github.io/posts/muon)."""

from functools import cache
from itertools import groupby

import torch
import torch.nn as nn

from configs.registry import Decay, NonNegative, Positive, build
from model.precision import fast_bf16, processor


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


REMEMBERED = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum_buffer",)}


class Optimizer:
    """torch's optimizers, each for some of the parameters, as one."""

    def __init__(self, model, parts):
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.parts = parts
        self.groups = [group for part in parts for group in part.param_groups]
        for group in self.groups:
            group["peak"] = group["lr"]

    def step(self, factor, scaler, overflow=False):
        """Where a gradient has overflowed, no parameter moves: the scaler alone would let some."""
        for group in self.groups:
            group["lr"] = group["peak"] * factor
        for part in self.parts if not overflow else ():
            scaler.step(part)
        scaler.update()
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def forget(self):
        for part in self.parts:
            part.state.clear()
            part.zero_grad(set_to_none=True)

    def tensors(self):
        """All it remembers, by the names of the parameters."""
        return {
            f"{self.names[parameter]}.{key}": value
            for part in self.parts
            for parameter, state in part.state.items()
            for key, value in state.items()
        }

    def expected_state(self):
        """Tensors such as it remembers after a step: of those names, dtypes and shapes."""
        like = {"step": torch.empty(())}
        return {
            f"{self.names[parameter]}.{key}": like.get(key, parameter)
            for part, _, parameter in self.learners()
            for key in REMEMBERED[type(part)]
        }

    def load(self, tensors):
        """What tensors() said, as copies where each parameter is; nothing, before its first step."""
        for part, group, parameter in self.learners():
            name = self.names[parameter]
            own = {key: tensors[f"{name}.{key}"] for key in REMEMBERED[type(part)] if tensors}
            part.state[parameter] = {key: placed(tensor, parameter, group) for key, tensor in own.items()}

    def learners(self):
        return [(part, g, p) for part in self.parts for g in part.param_groups for p in g["params"]]


def placed(tensor, parameter, group):
    """Beside its parameter; a count of steps only where the update itself runs there."""
    there = tensor.ndim or group.get("fused") or group.get("capturable")
    return tensor.to(parameter.device if there else "cpu")


def adamw(parameters, lr, beta1, beta2, eps, weight_decay):
    """Only matrices decay: shrinking a gain or a bias helps nobody."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cuda", "cpu") for p in parameters)
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=fused)


def hidden_matrices(model):
    """The linear maps of the stacks: neither tables nor the head."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("head.")
    ]


def make_adamw(model, lr: Positive, beta1: Decay, beta2: Decay, eps: Positive, weight_decay: NonNegative):
    return Optimizer(model, [adamw(list(model.parameters()), lr, beta1, beta2, eps, weight_decay)])


def make_muon(model, lr: Positive, momentum: Decay, weight_decay: NonNegative, adamw_lr_ratio: Positive,
              beta1: Decay, beta2: Decay, eps: Positive):  # fmt: skip
    """Muon for the matrices of the blocks; AdamW, at adamw_lr_ratio * lr, for embeddings, head and vectors."""
    inner = hidden_matrices(model)
    outer = [parameter for parameter in model.parameters() if all(parameter is not p for p in inner)]
    muon = Muon(inner, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return Optimizer(model, [muon, adamw(outer, adamw_lr_ratio * lr, beta1, beta2, eps, 0.0)])


OPTIMIZERS = {"adamw": make_adamw, "muon": make_muon}


def make_optimizer(config, model):
    return build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
