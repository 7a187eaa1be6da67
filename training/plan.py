"""Plan: checks before a run, and the lines that tell what it will cost."""

import math
import os
import re
from collections import Counter

import torch

from configs.cli import clock
from configs.registry import build
from data.corpus import build_data
from data.disk import filesize
from data.tokenizers.train import TOKENIZERS
from model.transformer import build_model
from training.optimizer import OPTIMIZERS
from training.profile import announce, divisors
from training.schedule import SCHEDULES


def check_batch_size(train, world_size):
    """A batch is split evenly into processes and micro-batches."""
    n, micro = train.batch_size, train.micro_batch_size
    if extra := n % world_size:
        near = " or ".join(str(size) for size in (n - extra, n - extra + world_size) if size)
        message = f"train.batch_size is {n}; expected a multiple of the {world_size} processes"
        raise ValueError(f"{message}, such as {near}")
    if micro != "auto" and (rows := n // world_size) % micro:
        near = min(reversed(divisors(rows)), key=lambda d: abs(d - micro))
        message = f"train.micro_batch_size is {micro}; expected a divisor of {rows} (per process)"
        raise ValueError(f"{message}, such as {near}")


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
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if hasattr(os, "sysconf")
        else math.inf
    )
    if size > memory:
        raise MemoryError(
            f"the weights need {filesize(size)}, the memory is {filesize(memory)}; {advice}"
        )
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
    share = world if run.dist.parallel == "fsdp" else 1
    needs = 8 * parts.total() // share, cost.optimizer_bytes // share, cost.activation_bytes
    memory, weights, optimizer, activations = map(filesize, (sum(needs), *needs))
    if cost.peak_bytes:
        memory += f", at most {filesize(cost.peak_bytes)} allocated"
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
