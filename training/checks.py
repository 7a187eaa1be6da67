"""Checks of user parts: state that no checkpoint would hold is refused at the start, because a
resumed run would lack it. And checks of the numbers of a step."""

import math
import zlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from configs.cli import warn
from model.weights import Tensors, frozen_tensors
from training.optimizer import groups_of
from training.run import Run


def check_state(model: nn.Module, objective: Any) -> None:
    """Refuse tensors and modules that are plain attributes, not registered in the model."""
    known = {id(held) for held in (*model.parameters(), *model.buffers(), *model.modules())}
    for path, owner in (*model.named_modules(), ("objective", objective)):
        for name in getattr(owner, "_non_persistent_buffers_set", ()):
            refuse(path, name, "no persistent buffer: leave out persistent=False")
        for name, value in vars(owner).items():
            for held in tree_leaves(value):  # of lists, tuples and dicts
                if isinstance(held, Tensor | nn.Module) and id(held) not in known:
                    refuse(path, name, "no parameter, persistent buffer or module of the model")


def refuse(path: str, name: str, reason: str) -> None:
    raise ValueError(f"{path}.{name} is {reason}; a checkpoint would not hold it")


def unchanging(run: Run, tensors: dict[str, Tensors]) -> list:
    """What no step may change: the names of tensors and the options of optimizers. A custom
    optimizer that makes state in a step, or changes its options, could not be resumed."""
    names = [list(named) for named in tensors.values()]
    groups = groups_of(run.optimizers)
    options = [{**group, "params": None, "lr": None} for group in groups]
    # a frozen parameter is stored once, before the first step; _version counts its changes
    frozen = [tensor._version for tensor in frozen_tensors(run.model).values()]
    return [names, options, frozen]


def check_batches(objective: Any, loader: Any) -> None:
    """Refuse an objective that counts or remembers its calls: a resumed run would start over."""
    before = repr(vars(objective))
    batches = [loader.batch(0) for _ in range(2)]
    # all tensors: the inputs; and of what a batch yields, the targets, and weights if there are any
    first, again = [[*batch.inputs.values(), *filter(torch.is_tensor, batch)] for batch in batches]
    if repr(vars(objective)) != before or not all(map(torch.equal, first, again)):
        reason = "changes when it makes a batch, which may depend only on its rows and draws"
        raise ValueError(f"{type(objective).__name__} {reason}")


def check_terms(run: Run, names: Collection[str]) -> None:
    """Refuse losses whose names differ between processes, which add them up by position."""
    code = zlib.crc32(" ".join(names).encode())
    if run.world.sum(code).item() != run.world.size * code:
        hint = "losses() must return the same names, in one order, with 0 where nothing counts"
        raise ValueError(f"one process has the losses {', '.join(names)}, and another not; {hint}")


def check_finite(numbers: dict[str, float], step: int) -> None:
    """Refuse a NaN or infinity before it reaches the weights."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            reason = f"step {step}: the {name} is not finite ({number})"
            hint = "the weights were not updated; try a lower optimizer.lr"
            raise FloatingPointError(f"{reason}; {hint}")


def check_gradients(run: Run, losses: Collection[str]) -> None:
    """Name the parameters that the first backward pass did not reach. DDP would fail in the next
    step, because it waits for their gradients."""
    if run.world.size > 1:
        check_terms(run, losses)
    parameters = run.model.named_parameters()
    missing = [name for name, p in parameters if p.requires_grad and p.grad is None]
    if not missing:
        return

    hint = "use them, or call requires_grad_(False)"
    sentence = f"the loss does not depend on {', '.join(missing)}; {hint}"
    if run.world.parallel == "ddp":
        raise ValueError(sentence)
    warn(sentence)
