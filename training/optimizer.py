"""Optimizers: AdamW for everything, or Muon for the hidden matrices and AdamW for the rest."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from configs.registry import BelowOne, NonNegative, Positive, Registry, build
from model.attention import MultiHeadAttention
from model.embedding import Embedding
from model.weights import Tensors, trained_parameters
from training.muon import Eager, Muon


class AdamW(Eager, torch.optim.AdamW):
    """`lr` is for groups that set none; weight decay is only for groups that set it."""

    # torch's decorator would import the compiler at the first step, like those that Eager removes
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))

    def __init__(self, groups: Any, lr: float, beta1: float, beta2: float, eps: float):
        devices = {p.device.type for group in groups for p in group["params"]}
        fused = devices <= {"cuda", "cpu"}
        betas = (float(beta1), float(beta2))  # torch takes no integers
        super().__init__(groups, lr, betas, eps, weight_decay=0.0, fused=fused)

    def start_state(self, parameter: Tensor) -> Tensors:
        device = parameter.device if self.defaults["fused"] else "cpu"  # where torch keeps it
        return {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }


def make_adamw(
    model: nn.Module,
    lr: Positive,
    beta1: BelowOne,
    beta2: BelowOne,
    eps: Positive,
    weight_decay: NonNegative,
) -> list[Optimizer]:
    """AdamW for all parameters. Weight decay applies to those with two axes or more, such as
    matrices, not to gains and biases."""
    trained = trained_parameters(model).values()
    matrices = [p for p in trained if p.ndim >= 2]
    vectors = [p for p in trained if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors}]
    return [AdamW(groups, lr, beta1, beta2, eps)]


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
    """Muon for the hidden matrices; AdamW for embeddings, and for the rest: the head, vectors, and
    other tables, such as that of bigrams. Both at multiples of lr."""
    shares: dict[Tensor, float] = {}  # each matrix's share of lr, usually 1
    tables = set()

    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            # the updates of Muon all have one size; queries that are initialized smaller need
            # smaller ones: T5's, whose scores are not divided by sqrt(head_dim)
            shares[module.query.weight] = module.query_gain
        if isinstance(module, nn.Linear):  # queries have come before, with their attention
            shares.setdefault(module.weight, 1.0)
        if isinstance(module, Embedding):
            tables |= set(module.parameters())

    matrices: dict[float, list[Tensor]] = {1.0: []}  # by share; the log shows the lr of the first
    embeddings = []
    rest = []

    for name, parameter in trained_parameters(model).items():
        if parameter in tables:
            embeddings.append(parameter)
        elif parameter in shares and not name.startswith("head."):
            matrices.setdefault(shares[parameter], []).append(parameter)
        else:
            rest.append(parameter)

    if not any(matrices.values()):
        raise ValueError("it needs matrices to train, and none is trained; choose optimizer=lora")

    hidden = [{"params": weights, "lr": share * lr} for share, weights in matrices.items()]
    embedding_lr = (embedding_lr_ratio or adamw_lr_ratio) * lr
    others = [{"params": embeddings, "lr": embedding_lr}, {"params": rest}]
    return [
        Muon(hidden, lr, momentum, weight_decay),
        AdamW(others, adamw_lr_ratio * lr, beta1, beta2, eps),
    ]


OPTIMIZERS: Registry[Callable[..., list[Optimizer]]] = Registry(
    adamw=make_adamw,
    muon=make_muon,
)


def build_optimizers(config: dict, model: nn.Module) -> list:
    """The optimizers, with the state that torch would make at the first step. So a checkpoint has
    the same tensors at every step, and the micro-batch is fitted with them in memory."""
    optimizers = build("optimizer", OPTIMIZERS, config, {"model": model})
    given = set()

    for optimizer in optimizers:
        if not hasattr(optimizer, "start_state"):
            hint = "give it a method start_state(parameter) -> {name: tensor}"
            raise ValueError(f"the state of {type(optimizer).__name__} is not known: {hint}")

        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
            for parameter in group["params"]:
                optimizer.state[parameter] = optimizer.start_state(parameter)
                given.add(parameter)

    trained = trained_parameters(model)
    if lost := [name for name in trained if trained[name] not in given]:
        raise ValueError(f"no optimizer has {', '.join(lost)}; freeze what is not trained")
    return optimizers


def groups_of(optimizers: list[Optimizer]) -> list[dict]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def set_lr(optimizers: list[Optimizer], factor: float) -> float:
    """Multiply each base learning rate by the schedule's factor, and return the first result, that
    of optimizer.lr."""
    groups = groups_of(optimizers)
    for group in groups:
        group["lr"] = group["base_lr"] * factor
    return groups[0]["lr"]


def state_tensors(model: nn.Module, optimizers: list[Optimizer]) -> Tensors:
    """{name: tensor} of the state of every parameter."""
    return {
        f"{name}.{key}": tensor
        for optimizer in optimizers
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
