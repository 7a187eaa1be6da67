"""Adapt: which weights of a trained model fine-tuning changes: all of them, low-rank matrices
beside its linear maps, or those of its last blocks."""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.registry import BelowOne, Count, Positive, Registry, build
from model.transformer import Stack


class LoRA(nn.Module):
    """A frozen linear map plus the product of two low-rank matrices, which are trained
    (arxiv.org/abs/2106.09685)."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, dropout: float, draw: Any):
        super().__init__()
        self.linear = linear
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)

        weight = linear.weight
        n_out, n_in = weight.shape
        bound = n_in**-0.5
        down = torch.empty(rank, n_in, device="cpu")
        down.uniform_(-bound, bound, generator=draw)
        self.down = nn.Parameter(down.to(weight))
        self.up = nn.Parameter(weight.new_zeros(n_out, rank))

    def forward(self, x: Tensor) -> Tensor:
        low_rank = F.linear(self.drop(x), self.down)
        added = F.linear(low_rank, self.up)
        return self.linear(x) + self.scale * added

    @property
    def weight(self) -> Tensor:
        """The weight of both as one map; MLA multiplies by it itself."""
        return self.linear.weight + self.scale * (self.up @ self.down)


def adapters_of(model: nn.Module) -> dict[str, LoRA]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRA)}


def merge_adapters(model: nn.Module) -> None:
    for name, adapter in adapters_of(model).items():
        linear = adapter.linear
        linear.weight = nn.Parameter(adapter.weight)
        model.set_submodule(name, linear)


def add_lora(
    model: nn.Module, seed: int, rank: Count, alpha: Positive, dropout: BelowOne, layers: str
) -> None:
    """Add LoRA to the linear maps of the blocks whose names match the pattern."""
    maps = {
        name: module
        for name, module in model.named_modules()
        if ".blocks." in name and isinstance(module, nn.Linear) and module.weight.ndim == 2
    }

    try:
        chosen = [name for name in maps if layers and re.search(layers, name)]
    except re.error as error:
        raise ValueError(
            f"layers is {layers!r}, which is not a regular expression ({error})"
        ) from None

    if not chosen:
        some = ", ".join([*maps][:7])
        raise ValueError(f"layers is {layers!r}, which matches no name; some are: {some}")

    model.requires_grad_(False)
    if model.classes:
        model.head.requires_grad_()
    draw = torch.Generator().manual_seed(seed)

    for name in chosen:
        model.set_submodule(name, LoRA(maps[name], rank, alpha, dropout, draw))


def freeze(model: Any, last: Count) -> None:
    """Freeze all but the last blocks, the final norm and the head. The blocks of an encoder-decoder
    are those of its decoder; a head that is tied to the embedding is frozen with it."""
    stack = next(module for module in model.modules() if isinstance(module, Stack))
    n = len(stack.blocks)

    if last > n:
        raise ValueError(f"last is {last}, and the model has {n} blocks")

    model.requires_grad_(False)
    stack.blocks[-last:].requires_grad_()
    stack.final_norm.requires_grad_()
    model.head.requires_grad_(not model.head.tie_weights)


ADAPTS = Registry(none=lambda model: None, lora=add_lora, freeze=freeze)


def adapt(model: nn.Module, node: dict, seed: int = 0) -> None:
    """Freeze what is not trained, and add what is."""
    build("adapt", ADAPTS, node, {"model": model, "seed": seed})
