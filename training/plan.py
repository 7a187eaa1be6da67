"""Plan: what a run will cost, measured in a few steps that are rolled back, and the lines that report it."""

import math
import os
import re
import sys
import time
from collections import Counter
from contextlib import contextmanager
from statistics import median
from threading import Timer
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from configs.cli import print
from configs.registry import build
from data import TOKENIZERS
from data.corpus import build_data
from data.disk import filesize
from model import build_model
from training.distributed import Dist, is_main_rank
from training.optimizer import OPTIMIZERS
from training.schedule import SCHEDULES
from training.step import LossModule, TrainStep, seed_step

MICRO_BATCH_TOKENS = 1 << 14  # tokens in a micro-batch on a CPU, at most
FIRST_STEPS = 128  # the widest batch of these is profiled


class StepCost(NamedTuple):  # of one process
    micro_batch_size: int
    flops: float
    optimizer_bytes: int
    activation_bytes: int  # kept for the backward pass of a micro-batch
    seconds: float


class FlopCounter(TorchDispatchMode):
    """Counts the FLOPs of matrix products. torch's FlopCounterMode also tracks modules, which fails where the
    loss takes a gradient within its forward pass."""

    total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        if count := flop_registry.get(operation.overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=output)
        return output


@contextmanager
def announce(what, seconds=5.0):
    """Print what is being done, if it takes longer."""
    timer = Timer(seconds, lambda: print(f"{what} ...", file=sys.stderr))
    if is_main_rank():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@announce("measuring a training step")
def profile_step(config, dist, precision, loaders, model, optimizer, stored=None):
    """(TrainStep, StepCost) after a few trial steps, which leave weights and optimizer as they were."""
    rows, device = config.train.batch_size // dist.world_size, precision.device
    widest = max(range(FIRST_STEPS), key=loaders.train.seq_len)
    batch = loaders.train.batch(widest, *dist).to(device)
    row = batch.rows(0, 1).map_tensors(torch.clone)  # a view would be counted with its whole batch
    saved = {k: v.to("cpu", copy=True) for k, v in model.state_dict().items()}
    # alone: a process that runs out of memory must not block the others
    trial = TrainStep(model, optimizer, precision, Dist(), rows, config.train.grad_clip)
    seed_step(config.seed, 0)
    flops, activation_bytes = count_flops_and_activations(model, precision, row)
    if config.compile is True or (config.compile == "auto" and device.type == "cuda"):
        trial.train_module = torch.compile(trial.loss_module)
        try:
            trial.backward(row, row.count)
        except Exception as error:  # whatever a compiler raises, training works without it
            [reason] = (str(error).strip() or type(error).__name__).splitlines()[:1]
            print(f"warning: not compiled ({reason:.100})", file=sys.stderr)
            trial.train_module = trial.loss_module
    n = find_micro_batch(config, dist, trial, batch, stored)
    micro_batch = batch.rows(0, n)

    def seconds(function, *args):
        start = time.perf_counter()
        function(micro_batch, *args)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(trial, 0.0)  # the first step is always slow
    # a step is an update after one micro-batch, and the backward passes of the others
    backward = seconds(trial.backward, micro_batch.count) if rows > n else 0
    update = median(seconds(trial, 0.0) for _ in range(5 if config.train.minutes else 1))
    model.load_state_dict(saved)
    optimizer.reset()
    optimizer_bytes = sum(tensor.nbytes for tensor in optimizer.expected_state().values())
    step_seconds = update + (rows // n - 1) * backward
    cost = StepCost(n, flops * rows, optimizer_bytes, activation_bytes * n, step_seconds)
    return TrainStep(model, optimizer, precision, dist, n, trial.max_grad_norm, trial.train_module), cost


def count_flops_and_activations(model, precision, row):
    """(FLOPs, bytes kept for the backward pass) of a batch of one row."""
    storages = {}

    def record(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with sdpa_kernel(SDPBackend.MATH), FlopCounter() as counter:
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor), precision.autocast():
            total = LossModule(model)(*row)
        total.backward()
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
        parameter.grad = None
    return counter.total, sum(storages.values())


def find_micro_batch(config, dist, trial, batch, stored):
    """The configured size; on a CPU the largest within MICRO_BATCH_TOKENS; on a GPU the largest that fits."""
    size, device, rows = config.train.micro_batch_size, trial.precision.device, len(batch.targets)
    if size != "auto":
        return size
    divisors = [n for n in range(rows, 0, -1) if rows % n == 0]
    if stored and stored.state.micro_batch_size in divisors:
        return stored.state.micro_batch_size
    if device.type != "cuda":
        return next(n for n in divisors if n * config.model.context_length <= MICRO_BATCH_TOKENS or n == 1)
    for n in divisors:
        try:
            for _ in range(2):  # the second step has the optimizer state in memory, too
                trial(batch.rows(0, n), 0.0)
            fits = True
        except torch.OutOfMemoryError:
            fits = False
        trial.optimizer.reset()
        torch.cuda.empty_cache()
        if dist.all_reduce_sum(fits, device=device) == [dist.world_size]:
            return n
    raise MemoryError("not even one row of a batch fits on the GPU; lower size= or model.context_length")


def check_batch_size(train, world_size):
    """A batch is split evenly into processes and micro-batches."""
    n, micro = train.batch_size, train.micro_batch_size
    if n % world_size:
        raise ValueError(f"train.batch_size is {n}; expected a multiple of the {world_size} processes")
    if micro != "auto" and (rows := n // world_size) % micro:
        raise ValueError(f"train.micro_batch_size is {micro}; expected a divisor of {rows} (per process)")


@announce("building the model")
def check_parts(config):
    """Refuse a part that cannot be built, before any text is read."""
    advice = "choose a smaller size=, or smaller parts"
    try:
        with torch.device("meta"):
            model = build_model(config.model, 256, config.seed)
    except RuntimeError as error:  # the number of bytes overflows
        raise MemoryError(f"a model of these sizes fits in no memory ({error}); {advice}") from None
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if size > memory:
        raise MemoryError(f"the weights need {filesize(size)}, the memory is {filesize(memory)}; {advice}")
    build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    if config.train.steps:
        build("schedule", SCHEDULES, config.schedule, {"steps": config.train.steps})
    build_data(config)
    if not config.init_from and config.tokenizer.get("kind") != "hub":  # which have one
        build("tokenizer", TOKENIZERS, config.tokenizer, {})


PARTS = ("norm", "cross", "attention", "ffn", "embedding", "position", "head")


def plan(run):
    """The lines that are printed before a run, and all that dry_run=true prints."""
    train, cost, world = run.loaders.train, run.cost, run.dist.world_size
    batch_size, vocab_size = run.config.train.batch_size, run.loaders.tokenizer.vocab_size
    parts = Counter()  # a tied embedding counts where it is first used
    for name, parameter in run.model.named_parameters():
        part = next((part for part in PARTS if part in re.split("[._]", name)), "other")
        parts["cross-attention" if part == "cross" else part] += parameter.numel()
    needs = 8 * parts.total(), cost.optimizer_bytes, cost.activation_bytes
    memory, weights, optimizer, activations = map(filesize, (sum(needs), *needs))
    steps = f"{run.steps:,} steps of {batch_size:,} {run.examples}, {run.tokens_per_step:,} tokens"
    if world > 1:
        memory, steps = f"{memory} per process", f"{steps}, on {world} processes"
    if (n := batch_size // world // cost.micro_batch_size) > 1:
        steps += f", {n} micro-batches of {cost.micro_batch_size}"
    unigram, seconds = train.part.unigram_entropy, cost.seconds * run.steps
    total_time = f"{seconds:.0f} s" if seconds < 90 else clock(seconds)
    sizes = ", ".join(f"{part} {size:,}" for part, size in parts.most_common())
    return f"""\
device      {run.precision.device}, {str(run.precision.dtype).removeprefix("torch.")}: {run.precision.reason}
model       {run.config.model.kind}, {parts.total():,} parameters: {sizes}
data        {train.part.n_tokens:,} tokens, vocab {vocab_size:,}, {train.n:,} {run.examples}
baselines   uniform {math.log(vocab_size):.2f}, unigram {unigram:.2f} nats/token
training    {steps}; {run.epochs(run.steps):.2f} epochs
memory      about {memory}: weights and gradients {weights}, optimizer {optimizer}, activations {activations}
compute     {cost.flops * world:.2e} FLOPs/step, {cost.flops * world * run.steps:.2e} total
time        about {total_time}, {cost.seconds * 1000:,.0f} ms per step"""


def clock(seconds):
    """1:02, or 1:00:02"""
    hours, seconds = divmod(round(seconds), 3600)
    return f"{hours}:{seconds // 60:02}:{seconds % 60:02}" if hours else f"{seconds // 60}:{seconds % 60:02}"
