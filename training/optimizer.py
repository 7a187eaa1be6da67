"""Optimizer: which parameters learn by which rule, and how fast."""

import torch
import torch.nn as nn

from model.build import build, require_above
from training import muon

REMEMBERED = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), muon.Muon: ("momentum_buffer",)}


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

    def wanted(self):
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


def adamw(parameters, rate, beta1, beta2, eps, weight_decay):
    """Only matrices decay: shrinking a gain or a bias helps nobody."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cuda", "cpu") for p in parameters)
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=rate, betas=(beta1, beta2), eps=eps, fused=fused)


def check(beta1, beta2, weight_decay):
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be from 0 to below 1 and is {value}")
    if weight_decay < 0:
        raise ValueError(f"weight_decay must be 0 or more and is {weight_decay}")


class AdamW:
    def __init__(self, rate: float, beta1: float, beta2: float, eps: float, weight_decay: float):
        require_above(0, rate=rate, eps=eps)
        check(beta1, beta2, weight_decay)
        self.options = (rate, beta1, beta2, eps, weight_decay)

    def make(self, model):
        return Optimizer(model, [adamw(list(model.parameters()), *self.options)])


class Muon:
    """Matrices within the stacks by Muon; tables, head and vectors by AdamW at a rate of their own."""

    def __init__(self, rate: float, momentum: float, weight_decay: float, adamw_rate: float,
                 beta1: float, beta2: float, eps: float):  # fmt: skip
        require_above(0, rate=rate, adamw_rate=adamw_rate, eps=eps)
        check(beta1, beta2, weight_decay)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be from 0 to below 1 and is {momentum}")
        self.muon = {"lr": rate, "momentum": momentum, "weight_decay": weight_decay}
        self.adamw = (adamw_rate, beta1, beta2, eps, 0.0)

    def make(self, model):
        inner = hidden_matrices(model)
        outer = [parameter for parameter in model.parameters() if all(parameter is not p for p in inner)]
        return Optimizer(model, [muon.Muon(inner, **self.muon), adamw(outer, *self.adamw)])


def hidden_matrices(model):
    """The linear maps of the stacks: neither tables nor the head."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("head.")
    ]


OPTIMIZERS = {"adamw": AdamW, "muon": Muon}


def make_optimizer(config, model):
    return build("optimizer", OPTIMIZERS, config.optimizer, {}).make(model)
