"""Plan: what a run will cost, measured in a few steps that are rolled back, and the lines that report it."""

import math
import os
import sys
import time
from collections import Counter
from statistics import median
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from configs.registry import build
from data.disk import filesize
from data.store import unigram_entropy
from model import build_model
from training.distributed import Dist
from training.optimizer import OPTIMIZERS
from training.schedule import SCHEDULES
from training.step import LossModule, TrainStep, seed_step

MICRO_BATCH_TOKENS = 1 << 14  # tokens in a micro-batch on a CPU, at most
FIRST_STEPS = 128  # the widest batch of these is profiled


class StepCost(NamedTuple):
    """The cost of a step, for one process."""

    micro_batch_size: int
    flops: float
    optimizer_bytes: int
    activation_bytes: int  # kept for the backward pass of a micro-batch
    seconds: float


class FlopCounter(TorchDispatchMode):
    """Counts the FLOPs of matrix products. torch's FlopCounterMode also tracks modules, which fails where the
    loss takes a gradient within its forward pass."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        if count := flop_registry.get(operation.overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=output)
        return output


def profile_step(config, dist, precision, loaders, model, optimizer, stored=None):
    """(TrainStep, StepCost) after a few trial steps, which leave weights and optimizer as they were."""
    rows, device = config.train.batch_size // dist.world_size, precision.device
    widest = max(range(FIRST_STEPS), key=loaders.train.seq_len)
    batch, compiled = loaders.train.batch(widest, *dist).to(device), None
    row, saved = batch.rows(0, 1), {k: v.to("cpu", copy=True) for k, v in model.state_dict().items()}

    def make_step(micro_batch_size, dist=None):
        """Trial steps have no `dist`: a process that runs out of memory must not block the others."""
        numbers = precision.scaler(), precision, dist or Dist(), micro_batch_size, config.train.grad_clip
        return TrainStep(model, optimizer, *numbers, compiled)

    def fits(micro_batch_size):
        try:
            for _ in range(2):  # the second step has the optimizer state in memory, too
                make_step(micro_batch_size)(batch.rows(0, micro_batch_size), 0.0)
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            optimizer.reset()
            torch.cuda.empty_cache()

    seed_step(config.seed, 0)
    flops, activation_bytes = count_flops_and_activations(model, precision, row)
    if config.compile is True or (config.compile == "auto" and device.type == "cuda"):
        compiled = torch.compile(LossModule(model))
        try:
            make_step(1).backward(row, row.count)
        except Exception as error:  # whatever a compiler raises, training works without it
            [reason] = (str(error).strip() or type(error).__name__).splitlines()[:1]
            print(f"warning: not compiled ({reason:.100})", file=sys.stderr)
            compiled = None
    n = find_micro_batch(config, dist, device, rows, stored, fits)
    seconds = time_step(make_step(n), batch.rows(0, n), rows // n, 5 if config.train.minutes else 1)
    optimizer_bytes = sum(tensor.nbytes for tensor in optimizer.expected_state().values())
    model.load_state_dict(saved)
    optimizer.reset()
    cost = StepCost(n, flops * rows, optimizer_bytes, activation_bytes * n, seconds)
    return make_step(n, dist), cost


def count_flops_and_activations(model, precision, row):
    """(FLOPs, bytes kept for the backward pass) of a batch of one row."""
    storages = {}

    def record(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor), precision.autocast():
            total = LossModule(model)(row.inputs, row.targets, row.count)
        total.backward()
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
        parameter.grad = None
    return counter.total, sum(storages.values())


def find_micro_batch(config, dist, device, rows, stored, fits):
    """The configured size; on a CPU the largest within MICRO_BATCH_TOKENS; on a GPU the largest that fits."""
    if config.train.micro_batch_size != "auto":
        return config.train.micro_batch_size
    divisors = [n for n in range(rows, 0, -1) if rows % n == 0]
    if stored and stored.state.micro_batch_size in divisors:
        return stored.state.micro_batch_size
    if device.type != "cuda":
        most = max(1, MICRO_BATCH_TOKENS // config.model.context_length)
        return next(n for n in divisors if n <= most)
    for n in divisors:
        if dist.all_reduce_sum(fits(n), device=device) == [dist.world_size]:
            return n
    advice = "choose a smaller size= or model.context_length"
    raise MemoryError(f"not even one row of {config.model.context_length} tokens fits on the GPU; {advice}")


def time_step(train_step, micro_batch, n_micro_batches, repeats):
    """Seconds of a step: an update after one micro-batch, and the backward passes of the others."""
    device = train_step.precision.device

    def seconds(function, *args):
        start = time.perf_counter()
        function(micro_batch, *args)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    seconds(train_step, 0.0)  # the first step is always slow
    backward = seconds(train_step.backward, micro_batch.count) if n_micro_batches > 1 else 0
    return median(seconds(train_step, 0.0) for _ in range(repeats)) + (n_micro_batches - 1) * backward


def check_batch_size(train, world_size):
    """A batch is split evenly into processes and micro-batches."""
    rows, rest = divmod(train.batch_size, world_size)
    if rest:
        of = f"a multiple of {world_size}, the number of processes"
        raise ValueError(f"train.batch_size is {train.batch_size}; expected {of}")
    if train.micro_batch_size != "auto" and rows % train.micro_batch_size:
        of = f"a divisor of {rows}, the batch size of a process"
        raise ValueError(f"train.micro_batch_size is {train.micro_batch_size}; expected {of}")


def check_parts(config):
    """Refuse a model, optimizer or schedule that cannot be built, before any text is read."""
    advice = "choose a smaller size=, or smaller parts"
    try:
        with torch.device("meta"):
            model = build_model(config.model, 256, config.seed)
    except RuntimeError as error:  # the number of bytes overflows
        raise MemoryError(f"a model of these sizes fits in no memory ({error}); {advice}") from None
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        sizes = f"the weights need {filesize(size)} and the machine has {filesize(memory)} of memory"
        raise MemoryError(f"{sizes}; {advice}")
    build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    if config.train.steps:
        build("schedule", SCHEDULES, config.schedule, {"steps": config.train.steps})


PARTS = ("norm", "cross-attention", "attention", "ffn", "embedding", "position", "head")


def plan(run):
    """The lines that are printed before a run, and all that dry_run=true prints."""
    train, device, cost, world = run.loaders.train, run.precision.device, run.cost, run.dist.world_size
    batch_size, vocab_size = run.config.train.batch_size, run.loaders.tokenizer.vocab_size
    parts = Counter()  # a tied embedding counts where it is first used
    for name, parameter in run.model.named_parameters():
        words = [word for piece in reversed(name.split(".")[:-1]) for word in piece.split("_")]
        part = next((part for part in PARTS if part.partition("-")[0] in words), "other")
        parts[part] += parameter.numel()
    weights = 8 * parts.total()
    memory = filesize(weights + cost.optimizer_bytes + cost.activation_bytes)
    steps = f"{run.steps:,} steps of {batch_size:,} {run.examples}, {run.tokens_per_step:,} tokens"
    steps += f", on {world} processes" if world > 1 else ""
    if (n := batch_size // world // cost.micro_batch_size) > 1:
        steps += f", {n} micro-batches of {cost.micro_batch_size}"
    unigram, seconds = unigram_entropy(train.part.tokens), cost.seconds * run.steps
    total_time = f"{seconds:.0f} s" if seconds < 90 else clock(seconds)
    lines = {
        "device": f"{device}, {str(run.precision.dtype).removeprefix('torch.')}: {run.precision.reason}",
        "model": f"{run.config.model.kind}, {parts.total():,} parameters: "
        + ", ".join(f"{part} {size:,}" for part, size in parts.most_common()),
        "data": f"{train.part.n_tokens:,} tokens, vocab {vocab_size:,}, {train.n:,} {run.examples}",
        "baselines": f"uniform {math.log(vocab_size):.2f}, unigram {unigram:.2f} nats/token",
        "training": f"{steps}; {run.epochs(run.steps):.2f} epochs",
        "memory": f"about {memory}{' per process' if world > 1 else ''}: weights and gradients "
        f"{filesize(weights)}, optimizer {filesize(cost.optimizer_bytes)}, "
        f"activations {filesize(cost.activation_bytes)}",
        "compute": f"{cost.flops * world:.2e} FLOPs/step, {cost.flops * world * run.steps:.2e} total",
        "time": f"about {total_time}, {cost.seconds * 1000:,.0f} ms per step",
    }
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def clock(seconds):
    """1:02, or 1:00:02"""
    hours, seconds = divmod(round(seconds), 3600)
    return f"{hours}:{seconds // 60:02}:{seconds % 60:02}" if hours else f"{seconds // 60}:{seconds % 60:02}"
