"""Terms: losses that modules add to that of the model, in training, by a method losses()."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from training.run import Run
from training.trials import without_traces

# columns of metrics.jsonl: no other loss or metric may have these names
TAKEN = {"step", "tokens", "seconds", "tokens_per_second", "mfu", "full", "loss", "lr", "grad_norm"}
TAKEN |= {"parameters", "dataset", "confusion"}


def check_column(name: str) -> None:
    if name in TAKEN or name.startswith("val_"):
        raise ValueError(f"a loss or metric has the name {name!r}, which is taken; rename it")


class Terms:
    """The losses() of modules, each a mean or (sum, count). What is added of them is divided by the
    targets of the step later, as all losses are:

        mean            mean * targets of the micro-batch
        (sum, count)    sum * ratio, which is targets of the step / counts of the step

    Ratios have to be known before the first backward pass of a step: find_ratios() comes first,
    then add_to() in each forward pass."""

    def __init__(self, modules: list):
        self.modules = modules
        self.counts: Counter = Counter()  # {(module, name): count in the step}
        self.ratios: dict[Any, Tensor] = {}  # {(module, name): ratio}
        self.needs_ratios = True  # until the first step shows that all terms are means

    def find_ratios(self, run: Run, batches: Any, step_targets: Any) -> None:
        """Count by forward passes that leave no trace. batches: the micro_batches() of a step."""
        if not self.needs_ratios:
            return

        self.counts.clear()
        module = run.loss_module
        world = run.world
        gpus = [world.device] if world.device.type == "cuda" else []
        traces = without_traces(module)

        with torch.no_grad(), torch.random.fork_rng(gpus), traces, world.precision.autocast():
            for micro_batch, _ in batches:
                module(*micro_batch)  # calls add_to

        if self.counts:
            counts = world.sum(*self.counts.values())
            ratios = step_targets / (counts + (counts == 0))  # if a count is zero, so is its sum
            self.ratios = dict(zip(self.counts, ratios.float(), strict=True))
        self.needs_ratios = bool(self.ratios)  # of this step, or of one before

    def add_to(self, losses: dict[str, Tensor], micro_targets: int) -> None:
        """Add each term to the losses of a micro-batch, which are sums over its targets."""
        for module in self.modules:
            for name, term in module.losses().items():
                check_column(name)
                if isinstance(term, tuple):
                    added = self.scaled((module, name), *term)
                else:
                    added = micro_targets * torch.as_tensor(term)
                losses[name] = losses.get(name, 0.0) + added

    def scaled(self, key: Any, total: Tensor, n: Any) -> Tensor:
        if not self.needs_ratios:
            raise ValueError(f"{key[1]} was not (sum, count) in the first step; start with (0, 0)")
        self.counts[key] += n
        return total * self.ratios.get(key, 1.0)  # none is known in the first pass
