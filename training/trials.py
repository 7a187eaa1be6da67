"""Trials: passes that leave no trace, such as those that find the largest micro-batch that fits on
a GPU."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from configs.cli import warn
from data.batch import Batch
from training.run import Run


def fit_on_gpu(run: Run, train_module: Any, rows: int) -> int:
    """All rows, halved until two forward and backward passes fit in the memory of every process,
    the second beside the gradients of the first. No weight changes. A resumed run keeps its
    size."""
    world = run.world
    if size := run.state.micro_batch_size:
        return min(size, rows)

    widest = run.data.train.widest().share(world.rank, world.size)
    while world.sum(runs_out_of_memory(run, train_module, widest.rows(0, rows))).any():
        # with FSDP, no other pass can run after a failed backward pass
        if rows == 1 or world.parallel == "fsdp":
            raise MemoryError(
                f"micro-batches of {rows} do not fit on the GPU; lower train.micro_batch_size, "
                "size= or model.context_length"
            )

        rows = math.ceil(rows / 2)
        warn(f"out of memory; trying micro-batches of {rows}")
        torch.compiler.reset()  # else torch.compile would make the number of rows dynamic
    return rows


def runs_out_of_memory(run: Run, train_module: Any, batch: Batch) -> bool:
    # without an exchange by DDP: a process would wait for one that has run out of memory
    train_module.require_backward_grad_sync = False
    train_module.require_forward_param_sync = False
    try:
        with without_traces(train_module):
            for _ in range(2):
                with run.world.precision.autocast():
                    losses = train_module(*batch.to(run.world.device))
                sum(losses.values()).backward()
    except torch.OutOfMemoryError:
        return True
    finally:
        train_module.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return False


def without_traces(module: nn.Module) -> Any:
    """A context for forward passes that leave no trace. They start with the buffers as they are at
    this call, which may be long before the context is entered."""
    copies = {}
    for part in module.modules():
        copies[part] = {name: buffer.clone() for name, buffer in part.named_buffers(recurse=False)}
    return starting_with(copies)


@contextmanager
def starting_with(copies: dict[nn.Module, dict]) -> Iterator[None]:
    """Give modules these buffers; on exit, give them back the attributes that they had."""
    before = {part: {**vars(part)} for part in copies}
    for part, buffers in copies.items():
        part._buffers = {**part._buffers, **buffers}
    try:
        yield
    finally:
        for part, attributes in before.items():
            vars(part).update(attributes)  # among them _buffers
