"""Rehearsal: a few steps before the first, undone again: what a step costs, how many rows fit at once."""

import math
import os
import sys
import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from data.disk import filesize
from data.store import unigram_entropy
from model import build_model
from training.distributed import Dist
from training.optimizer import make_optimizer
from training.schedule import make_schedule
from training.step import LossModule, Way, backward, seed_step, update

MICRO_TOKENS = 1 << 14  # tokens whose activations are held at once on a CPU
LOOKED_AT = 128  # steps among which the widest batch is looked for
OUT_OF_MEMORY = torch.cuda.OutOfMemoryError


class StepCost(NamedTuple):
    """Of one step of this process: rows at a time, floating-point operations, bytes, and seconds, about."""

    micro_batch_size: int
    flops: float
    optimizer_bytes: int  # by the optimizer
    activations: int  # of one micro-batch, kept for its backward pass
    seconds: float


class FlopCounter(TorchDispatchMode):
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


def profile_step(run):
    """(the module that a step asks, compiled where that is wanted and works, its cost)"""
    rows = run.config.train.batch_size // run.dist.world_size
    step = max(range(LOOKED_AT), key=run.loaders.train.seq_len)
    batch = run.loaders.train.batch(step, *run.dist).to(run.precision.device)
    with undone(run):
        flops, activations = counted(run, batch.rows(0, 1))
        asked = compiled(run, batch.rows(0, 1))
        micro_batch_size = fitting(run, asked, batch, rows)
        seconds = timed(run, asked, batch, rows, micro_batch_size)
        remembered = sum(tensor.nbytes for tensor in run.optimizer.tensors().values())
    return asked, StepCost(
        micro_batch_size, flops * rows, remembered, activations * micro_batch_size, seconds
    )


@contextmanager
def undone(run):
    """What happens to weights, gradients and optimizer within is forgotten."""
    kept = {name: tensor.to("cpu", copy=True) for name, tensor in run.model.state_dict().items()}
    yield
    run.model.load_state_dict(kept)
    run.optimizer.forget()


def counted(run, row):
    """(operations, bytes kept for the backward pass) of one row"""
    asked, kept = LossModule(run.model), {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    seed_step(run.config.seed, 0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), run.precision.autocast():
            total = asked(row.inputs, row.targets, row.count)
        total.backward()
    for parameter in run.model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    run.optimizer.forget()
    return counter.total, sum(kept.values())


def compiled(run, row):
    """The module that a step asks, compiled if that works."""
    asked, wanted = LossModule(run.model), run.config.compile
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
    wanted = run.config.train.micro_batch_size
    if wanted != "auto":
        return wanted
    divisors = [n for n in range(rows, 0, -1) if rows % n == 0]
    if run.stored and run.stored.state.micro_batch_size in divisors:
        return run.stored.state.micro_batch_size
    if run.precision.device.type != "cuda":
        room = max(1, MICRO_TOKENS // run.config.model.context_length)
        return next(n for n in divisors if n <= room)
    for n in divisors:
        fits = tried(run, asked, batch, n)
        if run.dist.all_reduce_min(fits, device=run.precision.device):  # all processes have room for so many
            return n
    raise MemoryError(
        f"not even one row of {run.config.model.context_length} tokens fits on the GPU; choose a smaller size= or "
        "model.context_length"
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


def way(run, micro_batch_size):
    """As the run's own, but alone: no process waits for another here."""
    precision = run.precision
    return Way(
        run.optimizer, precision.scaler(), precision, Dist(), micro_batch_size, run.config.train.grad_clip
    )


def step(run, asked, batch, micro_batch_size):
    seed_step(run.config.seed, 0)
    update(asked, batch, 0.0, way(run, micro_batch_size))


def timed(run, asked, batch, rows, micro_batch_size):
    """Seconds of a step: one micro-batch and the update, and the other micro-batches."""
    part, device = batch.rows(0, micro_batch_size), run.precision.device

    def seconds(act):
        began = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    step(run, asked, part, micro_batch_size)  # the first is always slow
    repeats = 5 if run.config.train.minutes else 1
    whole = median(seconds(lambda: step(run, asked, part, micro_batch_size)) for _ in range(repeats))
    more = rows // micro_batch_size - 1
    one = seconds(lambda: backward(asked, part, part.count, way(run, micro_batch_size))) if more else 0
    return whole + more * one


PARTS = ("norm", "cross", "attention", "ffn", "embedding", "position", "head")


def check_parts(config):
    """What is wrong with model, optimizer or schedule is said before any text is read."""
    make_optimizer(config, check_memory(config))
    if config.train.steps:
        make_schedule(config.schedule, config.train.steps)


def check_memory(config):
    """The model of this config can be built, and its weights at least have room."""
    way_out = "choose a smaller size=, or smaller parts"
    try:
        with torch.device("meta"):
            model = build_model(config.model, 256, config.seed)
    except RuntimeError as error:  # torch cannot even count its bytes
        raise MemoryError(f"a model of these sizes fits in no memory ({error}); {way_out}") from None
    size, room = 4 * n_parameters(model), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > room:
        raise MemoryError(
            f"the weights of this model are {filesize(size)} and the machine has {filesize(room)} of memory; "
            f"{way_out}"
        )
    return model


def n_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def plan(run, cost):
    """The lines that are printed before a run, and all that dry_run=true prints."""
    config, train, precision = run.config, run.loaders.train, run.precision
    vocabulary, n = run.loaders.tokenizer.vocab_size, n_parameters(run.model)
    each = " in each process" if run.dist.world_size > 1 else ""
    parts = ", ".join(f"{name} {size:,}" for name, size in sizes(run.model).items())
    dtype = str(precision.dtype).removeprefix("torch.")
    epochs = run.steps * config.train.batch_size / train.n
    lines = {
        "device": f"{precision.device}, {dtype}: {precision.reason}",
        "model": f"{config.model.kind}, {n:,} parameters: {parts}",
        "data": f"{train.part.n_tokens:,} tokens of {vocabulary:,} words, {train.n:,} {run.examples}",
        "guessing": f"a loss of {math.log(vocabulary):.2f} where all words are alike, "
        f"{unigram_entropy(train.part.tokens):.2f} from how often each occurs",
        "training": f"{run.steps:,} steps of {config.train.batch_size:,} {run.examples}, "
        f"{run.tokens_per_step:,} tokens{in_micro_batches(run, cost)}; {epochs:.2f} epochs",
        "memory": f"about {filesize(memory(run, cost))}{each}: weights and gradients {filesize(8 * n)}, "
        f"optimizer {filesize(cost.optimizer_bytes)}, activations {filesize(cost.activations)}",
        "arithmetic": f"{cost.flops * run.dist.world_size:.2e} operations a step, "
        f"{cost.flops * run.dist.world_size * run.steps:.2e} in all",
        "time": f"about {duration(cost.seconds * run.steps)}, {cost.seconds * 1000:,.0f} ms a step",
    }
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def sizes(model):
    """{part: parameters}; a table that is also the head counts where it is read first."""
    found = Counter()
    for name, parameter in model.named_parameters():
        words = [word for piece in reversed(name.split(".")[:-1]) for word in piece.split("_")]
        found[next((part for part in PARTS if part in words), "other")] += parameter.numel()
    return {part: found[part] for part in sorted(found, key=found.get, reverse=True)}


def memory(run, cost):
    return 8 * n_parameters(run.model) + cost.optimizer_bytes + cost.activations


def in_micro_batches(run, cost):
    n = run.config.train.batch_size // run.dist.world_size // cost.micro_batch_size
    processes = f" on {run.dist.world_size} processes" if run.dist.world_size > 1 else ""
    return processes + (f", {cost.micro_batch_size} at a time" if n > 1 else "")


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else str(timedelta(seconds=round(seconds)))
