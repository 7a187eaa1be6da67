"""Rehearsal: a few steps before the first, undone again: what a step costs, how many rows fit at once."""

import sys
import time
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from training.distributed import Ranks
from training.step import Asked, Way, backward, seed_step, update

MICRO_TOKENS = 1 << 14  # tokens whose activations are held at once on a CPU
LOOKED_AT = 128  # steps among which the widest batch is looked for
OUT_OF_MEMORY = torch.cuda.OutOfMemoryError


class Cost(NamedTuple):
    """Of one step of this process: rows at a time, floating-point operations, bytes, and seconds, about."""

    micro_batch: int
    flops: float
    remembered: int  # by the optimizer
    activations: int  # of one micro-batch, kept for its backward pass
    seconds: float


class Operations(TorchDispatchMode):
    """Counts those of matrix products. torch's FlopCounterMode asks which module each belongs to, too, and
    that fails where a gradient is taken within a forward pass, as the loss does."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        if count := flop_registry.get(operation.overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=found)
        return found


def rehearse(run):
    """(the module that a step asks, compiled where that is wanted and works, its cost)"""
    rows = run.config.train.batch_size // run.ranks.world
    step = max(range(LOOKED_AT), key=run.streams.train.width)
    batch = run.streams.train.batch(step, *run.ranks).to(run.precision.device)
    with undone(run):
        flops, activations = counted(run, batch.rows(0, 1))
        asked = compiled(run, batch.rows(0, 1))
        micro_batch = fitting(run, asked, batch, rows)
        seconds = timed(run, asked, batch, rows, micro_batch)
        remembered = sum(tensor.nbytes for tensor in run.optimizer.tensors().values())
    return asked, Cost(micro_batch, flops * rows, remembered, activations * micro_batch, seconds)


@contextmanager
def undone(run):
    """What happens to weights, gradients and optimizer within is forgotten."""
    kept = {name: tensor.to("cpu", copy=True) for name, tensor in run.model.state_dict().items()}
    yield
    run.model.load_state_dict(kept)
    run.optimizer.forget()


def counted(run, row):
    """(operations, bytes kept for the backward pass) of one row"""
    asked, kept = Asked(run.model), {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    seed_step(run.config.seed, 0)
    with sdpa_kernel(SDPBackend.MATH), Operations() as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), run.precision.autocast():
            total = asked(row.inputs, row.targets, row.count)
        total.backward()
    for parameter in run.model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    run.optimizer.forget()
    return counter.total, sum(kept.values())


def compiled(run, row):
    """The module that a step asks, compiled if that works."""
    asked, wanted = Asked(run.model), run.config.compile
    if wanted is False or (wanted == "auto" and run.precision.device.type != "cuda"):
        return asked
    fast = torch.compile(asked)
    try:
        backward(fast, row, row.count, way(run, 1))
    except Exception as error:  # whatever a compiler raises, the step can do without it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        print(f"warning: not compiled ({reason:.100})", file=sys.stderr)
        return asked
    return fast


def fitting(run, asked, batch, rows):
    """Rows at a time: as asked for; on a CPU as many as stay within MICRO_TOKENS; on a GPU as many as fit."""
    wanted = run.config.train.micro_batch
    if wanted != "auto":
        return wanted
    divisors = [n for n in range(rows, 0, -1) if rows % n == 0]
    if run.stored and run.stored.state["micro_batch"] in divisors:
        return run.stored.state["micro_batch"]
    if run.precision.device.type != "cuda":
        room = max(1, MICRO_TOKENS // run.config.model.context)
        return next(n for n in divisors if n <= room)
    for n in divisors:
        fits = tried(run, asked, batch, n)
        if run.ranks.least(fits, device=run.precision.device):  # all processes have room for so many
            return n
    raise MemoryError(
        f"not even one row of {run.config.model.context} tokens fits on the GPU; choose a smaller size= or "
        "model.context"
    )


def tried(run, asked, batch, n):
    try:
        part = batch.rows(0, n)
        for _ in range(2):  # the second time the optimizer remembers, too
            step(run, asked, part, n)
        return True
    except OUT_OF_MEMORY:
        return False
    finally:
        run.optimizer.forget()
        torch.cuda.empty_cache()


def way(run, micro_batch):
    """As the run's own, but alone: no process waits for another here."""
    precision = run.precision
    return Way(run.optimizer, precision.scaler(), precision, Ranks(), micro_batch, run.config.train.grad_clip)


def step(run, asked, batch, micro_batch):
    seed_step(run.config.seed, 0)
    update(asked, batch, 0.0, way(run, micro_batch))


def timed(run, asked, batch, rows, micro_batch):
    """Seconds of a step: one micro-batch and the update, and the other micro-batches."""
    part, device = batch.rows(0, micro_batch), run.precision.device

    def seconds(act):
        began = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    step(run, asked, part, micro_batch)  # the first is always slow
    repeats = 5 if run.config.train.minutes else 1
    whole = median(seconds(lambda: step(run, asked, part, micro_batch)) for _ in range(repeats))
    more = rows // micro_batch - 1
    one = seconds(lambda: backward(asked, part, part.count, way(run, micro_batch))) if more else 0
    return whole + more * one
