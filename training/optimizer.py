"""Optimizers: AdamW for everything, or Muon for the hidden matrices and AdamW for the rest."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from configs.registry import BelowOne, NonNegative, Positive, Registry, build
from model.attention import MultiHeadAttention
from model.checkpoint import Tensors
from model.cpu import Eager
from model.embedding import Embedding
from training.muon import Muon


class AdamW(Eager, torch.optim.AdamW):
    """Without the wrapper of torch's that would import the compiler at the first step."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    def start_state(self, parameter: Tensor) -> Tensors:
        on_device = self.defaults["fused"]
        return {
            "step": torch.zeros((), device=parameter.device if on_device else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


def adamw(groups: list[dict[str, Any]], lr: float, beta1: float, beta2: float, eps: float) -> AdamW:
    """lr, and no weight decay, where a group has none of its own."""
    groups = [group for group in groups if group["params"]]
    fused = all(p.device.type in ("cuda", "cpu") for group in groups for p in group["params"])
    betas = (float(beta1), float(beta2))
    return AdamW(groups, lr=lr, betas=betas, eps=eps, weight_decay=0.0, fused=fused)


def make_adamw(
    model: nn.Module,
    lr: Positive,
    beta1: BelowOne,
    beta2: BelowOne,
    eps: Positive,
    weight_decay: NonNegative,
) -> list[Optimizer]:
    """Weight decay is for matrices, not for gains and biases."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay}
    vectors = {"params": [p for p in trained if p.ndim < 2]}
    return [adamw([matrices, vectors], lr, beta1, beta2, eps)]


def make_muon(
    model: nn.Module,
    lr: Positive,
    momentum: BelowOne,
    weight_decay: NonNegative,
    adamw_lr_ratio: Positive,
    beta1: BelowOne,
    beta2: BelowOne,
    eps: Positive,
    embedding_lr_ratio: Positive | None = None,
) -> list[Optimizer]:
    """Muon for the hidden matrices; AdamW for embeddings, head and vectors, at fractions of lr."""
    modules = [module for name, module in model.named_modules() if not name.startswith("head.")]
    trained = [p for p in model.parameters() if p.requires_grad]
    tables = {p for m in modules if isinstance(m, Embedding) for p in m.parameters()}
    # of each matrix, the share of lr. All updates are of one size, too large for queries that are
    # initialized smaller: T5's, whose scores are not divided by sqrt(head_dim)
    shares = {m.weight: 1.0 for m in modules if isinstance(m, nn.Linear)}
    shares |= {m.query.weight: m.query_gain for m in modules if isinstance(m, MultiHeadAttention)}
    if shares.keys().isdisjoint(trained):
        raise ValueError(
            "it is for matrices of the model, and none is trained; choose optimizer=lora"
        )

    groups = [
        {"params": [p for p in trained if shares.get(p) == share], "lr": share * lr}
        for share in dict.fromkeys([1.0, *shares.values()])
    ]
    embeddings = {
        "params": [p for p in trained if p in tables],
        "lr": (embedding_lr_ratio or adamw_lr_ratio) * lr,
    }
    rest = {"params": [p for p in trained if p not in tables and p not in shares]}
    return [
        Muon(groups, lr, momentum, weight_decay),
        adamw([embeddings, rest], adamw_lr_ratio * lr, beta1, beta2, eps),
    ]


OPTIMIZERS: dict[str, Callable[..., list[Optimizer]]] = Registry(adamw=make_adamw, muon=make_muon)


def build_optimizers(config: dict[str, Any], model: nn.Module) -> list[Any]:
    optimizers = build("optimizer", OPTIMIZERS, config, {"model": model})
    for group in groups_of(optimizers):
        group["base_lr"] = group["lr"]
    for optimizer in optimizers:
        start_state(optimizer)
    return optimizers


def groups_of(optimizers: list[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def set_lr(optimizers: list[Optimizer], factor: float) -> float:
    """The schedule's factor times each base learning rate; returns the first, which is
    optimizer.lr's."""
    groups = groups_of(optimizers)
    for group in groups:
        group["lr"] = group["base_lr"] * factor
    return groups[0]["lr"]


def start_state(optimizer: Any) -> None:
    """As torch makes it at the first step: so a checkpoint has the same tensors at every step, and a
    micro-batch is fitted beside them."""
    if not hasattr(optimizer, "start_state"):
        hint = "give it a method start_state(parameter) -> {name: tensor}"
        raise ValueError(f"the state of {type(optimizer).__name__} is not known: {hint}")
    for parameter in (p for group in groups_of([optimizer]) for p in group["params"]):
        optimizer.state[parameter] = optimizer.start_state(parameter)


def state_tensors(model: nn.Module, optimizers: list[Optimizer]) -> Tensors:
    """{name: tensor} of the state of every parameter."""
    return {
        f"{name}.{key}": tensor
        for optimizer in optimizers
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
