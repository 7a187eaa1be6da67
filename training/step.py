"""The parts of a training step; train.py has the step itself."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from configs.cli import warn
from configs.schema import LossConfig
from data.batch import Batch
from data.shuffle import hash_seed
from model.loss import chunk_gradients, loss
from training.run import Run

CPU_TOKENS = 1 << 14  # in a micro-batch on a CPU, at most
# columns of metrics.jsonl: no other loss or metric may have these names
COLUMNS = {"step", "tokens", "seconds", "loss", "lr", "grad_norm"}
COLUMNS |= {"tokens_per_second", "mfu", "full"}


class LossModule(nn.Module):
    """Maps a batch to its losses: the module that is compiled, sharded, and wrapped by DDP."""

    def __init__(self, model: nn.Module, config: LossConfig) -> None:
        super().__init__()
        self.model: Any = model
        self.options = vars(config)
        if hasattr(model, "loss") and any(self.options.values()):
            raise ValueError("loss.* is for cross-entropy; this model has a loss() of its own")
        self.contributors: list[Any] = [m for m in model.modules() if hasattr(m, "losses")]
        self.differentiate: Callable[..., Any] = chunk_gradients
        # for losses() that return (sum, count): each one's count in the step, and targets per count
        self.counts: Counter[Any] = Counter()
        self.ratios: dict[Any, Tensor] = {}
        self.has_counts = None if self.contributors else False  # unknown before the first step

    def forward(
        self, inputs: dict[str, Tensor], targets: Tensor, count: int, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """{name: sum over the targets}, which the caller divides by their number in the whole
        batch: the main loss, and the losses() of modules of the network, each a mean or (sum,
        count). In eval mode, only the main loss: the cross-entropy, or loss(hidden, targets) if the
        network has this method."""
        hidden = self.model.hidden(**inputs)
        if hasattr(self.model, "loss"):
            labels = [targets] if weights is None else [targets, weights]
            losses = {"loss": self.model.loss(hidden, *labels)}
        else:
            weights = weights if self.training else None
            options = self.options if self.training else {}
            head = self.model.head
            total, _ = loss(hidden, head, targets, count, weights, self.differentiate, **options)
            losses = {"loss": total}
        if self.training:
            for number, module in enumerate(self.contributors):
                for name, term in module.losses().items():
                    check_name(name)
                    total = self.over_targets((number, name), term, count)
                    losses[name] = losses.get(name, 0.0) + total
        return losses

    def over_targets(self, key: Any, term: Any, count: int) -> Tensor:
        """A loss term times the number of targets."""
        if not isinstance(term, tuple):
            return count * term
        if self.has_counts is False:
            raise ValueError(f"{key[1]} was not (sum, count) in the first step; start with (0, 0)")
        total, own = term
        self.counts[key] += own
        return total * self.ratios.get(key, 1.0)


def check_name(name: str) -> None:
    if name in COLUMNS or name.startswith("val_"):
        raise ValueError(f"a loss or metric has the name {name!r}, which is taken; rename it")


def without_traces(module: nn.Module) -> AbstractContextManager[None]:
    """A context in which forward passes start with the buffers of the time of this call, which may
    be long before it is entered; on exit, all attributes and buffers are restored."""
    copies = [
        {name: buffer.clone() for name, buffer in part.named_buffers(recurse=False)}
        for part in module.modules()
    ]

    @contextmanager
    def within() -> Iterator[None]:
        before = [(part, {**vars(part)}, {**part._buffers}) for part in module.modules()]
        for (part, _, _), copied in zip(before, copies, strict=True):
            part._buffers.update(copied)
        try:
            yield
        finally:
            for part, attributes, buffers in before:
                vars(part).update(attributes)
                part._buffers.update(buffers)

    return within()


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout is a function of (seed, step), so no random state has to be saved."""
    torch.manual_seed(int(hash_seed("step", seed, step, rank) >> 1))


def micro_batches(batch: Batch, size: int, device: torch.device) -> Iterator[tuple[Batch, bool]]:
    """Yield (rows of the batch, whether they are the last), cut and counted on the host."""
    n = len(batch.targets)
    for start in range(0, n, size):
        rows = batch.rows(start, start + size) if size < n else batch
        yield rows.to(device), start + size >= n


def count_terms(run: Run, batch: Batch, count: int | Tensor) -> None:
    """Find the counts of a step before its first backward pass, by forward passes that leave no
    trace. If all losses() turn out to be means, this happens only in the first step."""
    module = run.loss_module
    world = run.world
    size = run.state.micro_batch_size
    if module.has_counts is False:
        return

    module.counts.clear()
    gpus = [world.device] if world.device.type == "cuda" else []
    traces = without_traces(module)
    with torch.no_grad(), torch.random.fork_rng(gpus), traces, world.precision.autocast():
        for micro_batch, _ in micro_batches(batch, size, world.device):
            module(*micro_batch)
    if module.has_counts is None:
        module.has_counts = bool(module.counts)
    if module.counts:
        counts = world.sum(*module.counts.values())
        ratios = count / (counts + (counts == 0))  # if a count is zero, so is its sum
        module.ratios = dict(zip(module.counts, ratios.float(), strict=True))


def fit_micro_batch(run: Run, train_module: Any) -> int:
    """The rows of a micro-batch: on a GPU all of them, halved until two forward and backward passes
    fit in the memory of every process, the second beside the gradients of the first. No weight
    changes. A resumed run keeps its size."""
    config = run.config
    world = run.world
    rows = config.train.batch_size // world.size
    size = config.train.micro_batch_size
    if isinstance(size, int):
        return min(size, rows)
    if world.device.type != "cuda":
        return max(1, min(rows, CPU_TOKENS // config.model.context_length))
    if run.state.micro_batch_size:
        return min(run.state.micro_batch_size, rows)
    widest = run.data.train.widest().share(*world.share)
    while world.sum(runs_out_of_memory(run, train_module, widest.rows(0, rows))).any():
        # with FSDP, no other pass can run after a failed backward pass
        if rows == 1 or world.parallel == "fsdp":
            hint = "lower train.micro_batch_size, size= or model.context_length"
            raise MemoryError(f"micro-batches of {rows} do not fit on the GPU; {hint}")
        rows = math.ceil(rows / 2)
        if world.is_main:
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
