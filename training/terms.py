"""Terms: modules of the network may add to the training loss, by a method losses()."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from data.batch import Batch
from training.run import Run
from training.trials import without_traces

# columns of metrics.jsonl: no other loss or metric may have these names
COLUMNS = {"step", "tokens", "seconds", "loss", "lr", "grad_norm"}
COLUMNS |= {"tokens_per_second", "mfu", "full"}


def check_name(name: str) -> None:
    if name in COLUMNS or name.startswith("val_"):
        raise ValueError(f"a loss or metric has the name {name!r}, which is taken; rename it")


class Terms:
    """The losses() of modules, each a mean or (sum, count). For the latter, the counts of the whole
    step have to be known before its first backward pass."""

    def __init__(self, modules: list[Any]) -> None:
        self.modules = modules
        self.counts: Counter[Any] = Counter()  # each one's count in the step
        self.ratios: dict[Any, Tensor] = {}  # targets per count
        self.has_counts: bool | None = None  # unknown before the first step

    def add_to(self, losses: dict[str, Tensor], count: int) -> None:
        """Add each term times the number of targets."""
        for number, module in enumerate(self.modules):
            for name, term in module.losses().items():
                check_name(name)
                total = self.over_targets((number, name), term, count)
                losses[name] = losses.get(name, 0.0) + total

    def over_targets(self, key: Any, term: Any, count: int) -> Tensor:
        if not isinstance(term, tuple):
            return count * term
        if self.has_counts is False:
            raise ValueError(f"{key[1]} was not (sum, count) in the first step; start with (0, 0)")
        total, own = term
        self.counts[key] += own
        return total * self.ratios.get(key, 1.0)

    def count(self, run: Run, batches: Iterable[tuple[Batch, bool]], n_targets: Any) -> None:
        """Find the counts of a step, by forward passes that leave no trace. If all terms turn out
        to be means, this happens only in the first step."""
        if self.has_counts is False:
            return
        self.counts.clear()
        module = run.loss_module
        world = run.world
        gpus = [world.device] if world.device.type == "cuda" else []
        traces = without_traces(module)
        with torch.no_grad(), torch.random.fork_rng(gpus), traces, world.precision.autocast():
            for micro_batch, _ in batches:
                module(*micro_batch)
        if self.has_counts is None:
            self.has_counts = bool(self.counts)
        if self.counts:
            counts = world.sum(*self.counts.values())
            ratios = n_targets / (counts + (counts == 0))  # if a count is zero, so is its sum
            self.ratios = dict(zip(self.counts, ratios.float(), strict=True))
