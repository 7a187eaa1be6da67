"""Trials: passes that leave no trace. They find the largest micro-batch that fits on a GPU, and
count what losses() of modules add to the training loss."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from configs.cli import warn
from data.batch import Batch
from training.run import Run


def without_traces(module: nn.Module) -> AbstractContextManager[None]:
    """A context in which forward passes start with the buffers of the time of this call, which may
    be long before it is entered; on exit, all attributes and buffers are restored."""
    copies = {
        part: {name: buffer.clone() for name, buffer in part.named_buffers(recurse=False)}
        for part in module.modules()
    }

    @contextmanager
    def within() -> Iterator[None]:
        before = {part: {**vars(part)} for part in module.modules()}
        for part, copied in copies.items():
            part._buffers = {**part._buffers, **copied}
        try:
            yield
        finally:
            for part, attributes in before.items():
                vars(part).update(attributes)  # among them the buffers

    return within()


def fit_on_gpu(run: Run, train_module: Any, rows: int) -> int:
    """All rows, halved until two forward and backward passes fit in the memory of every process,
    the second beside the gradients of the first. No weight changes. A resumed run keeps its
    size."""
    world = run.world
    if run.state.micro_batch_size:
        return min(run.state.micro_batch_size, rows)

    widest = run.data.train.widest().share(world.rank, world.size)
    while world.sum(runs_out_of_memory(run, train_module, widest.rows(0, rows))).any():
        # with FSDP, no other pass can run after a failed backward pass
        if rows == 1 or world.parallel == "fsdp":
            hint = "lower train.micro_batch_size, size= or model.context_length"
            raise MemoryError(f"micro-batches of {rows} do not fit on the GPU; {hint}")

        rows = math.ceil(rows / 2)
        warn(f"out of memory; trying micro-batches of {rows}")
        torch.compiler.reset()  # else torch.compile would make the number of rows dynamic
    return rows


def runs_out_of_memory(run: Run, train_module: Any, rows: Batch) -> bool:
    # without an exchange by DDP: a process would wait for one that has run out of memory
    train_module.require_backward_grad_sync = False
    try:
        with without_traces(train_module):
            for _ in range(2):
                with run.world.precision.autocast():
                    losses = train_module(*rows.to(run.world.device))
                sum(losses.values()).backward()
    except torch.OutOfMemoryError:
        return True
    finally:
        train_module.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return False


# ---- loss terms

# columns of metrics.jsonl: no other loss or metric may have these names
COLUMNS = {"step", "tokens", "seconds", "loss", "lr", "grad_norm"}
COLUMNS |= {"tokens_per_second", "mfu", "full"}


def check_column(name: str) -> None:
    if name in COLUMNS or name.startswith("val_"):
        raise ValueError(f"a loss or metric has the name {name!r}, which is taken; rename it")


class Terms:
    """The losses() of modules, each a mean or (sum, count). For the latter, the counts of the whole
    step have to be known before its first backward pass."""

    def __init__(self, modules: list):
        self.modules = modules
        self.counts: Counter = Counter()  # each one's count in the step
        self.ratios: dict[Any, Tensor] = {}  # targets per count
        self.has_counts = True  # until a step shows that all terms are means

    def add_to(self, losses: dict[str, Tensor], count: int) -> None:
        """Add each term times the number of targets."""
        for number, module in enumerate(self.modules):
            for name, term in module.losses().items():
                check_column(name)
                total = self.over_targets((number, name), term, count)
                losses[name] = losses.get(name, 0.0) + total

    def over_targets(self, key: Any, term: Any, count: int) -> Tensor:
        if not isinstance(term, tuple):
            return count * term

        if not self.has_counts:
            raise ValueError(f"{key[1]} was not (sum, count) in the first step; start with (0, 0)")
        total, own = term
        self.counts[key] += own
        return total * self.ratios.get(key, 1.0)

    def count(self, run: Run, batches: Iterable[tuple[Batch, bool]], n_targets: Any) -> None:
        """Find the counts of a step, by forward passes that leave no trace. If all terms turn out
        to be means, this happens only in the first step."""
        if not self.has_counts:
            return

        self.counts.clear()
        module = run.loss_module
        world = run.world
        gpus = [world.device] if world.device.type == "cuda" else []
        traces = without_traces(module)

        with torch.no_grad(), torch.random.fork_rng(gpus), traces, world.precision.autocast():
            for micro_batch, _ in batches:
                module(*micro_batch)

        self.has_counts = bool(self.counts or self.ratios)  # of this step, or of one before
        if self.counts:
            counts = world.sum(*self.counts.values())
            ratios = n_targets / (counts + (counts == 0))  # if a count is zero, so is its sum
            self.ratios = dict(zip(self.counts, ratios.float(), strict=True))
