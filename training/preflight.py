"""Preflight: what is about to happen, said before the first step."""

import math
import os
from collections import Counter
from datetime import timedelta

import torch

from data.disk import in_bytes
from data.store import entropy
from model import build_model
from model.build import build
from training.optimizer import OPTIMIZERS
from training.schedule import make_schedule

PARTS = ("norm", "cross", "attention", "ffn", "embedding", "position", "head")


def check_parts(config):
    """What is wrong with model, optimizer or schedule is said before any text is read."""
    check_memory(config)
    build("optimizer", OPTIMIZERS, config.optimizer, {})
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
            f"the weights of this model are {in_bytes(size)} and the machine has {in_bytes(room)} of memory; "
            f"{way_out}"
        )


def n_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def plan(run, cost):
    """The lines that are printed before a run, and all that dry_run=true prints."""
    config, train, precision = run.config, run.streams.train, run.precision
    vocabulary, n = run.streams.tokenizer.vocab_size, n_parameters(run.model)
    each = " in each process" if run.ranks.world > 1 else ""
    parts = ", ".join(f"{name} {size:,}" for name, size in sizes(run.model).items())
    dtype = str(precision.dtype).removeprefix("torch.")
    epochs = run.steps * config.train.batch_size / train.n
    lines = {
        "device": f"{precision.device}, {dtype}: {precision.reason}",
        "model": f"{config.model.kind}, {n:,} parameters: {parts}",
        "data": f"{train.part.n_tokens:,} tokens of {vocabulary:,} words, {train.n:,} {run.examples}",
        "guessing": f"a loss of {math.log(vocabulary):.2f} where all words are alike, "
        f"{entropy(train.part.tokens):.2f} from how often each occurs",
        "training": f"{run.steps:,} steps of {config.train.batch_size:,} {run.examples}, "
        f"{run.tokens_per_step:,} tokens{in_micro_batches(run, cost)}; {epochs:.2f} epochs",
        "memory": f"about {in_bytes(memory(run, cost))}{each}: weights and gradients {in_bytes(8 * n)}, "
        f"optimizer {in_bytes(cost.remembered)}, activations {in_bytes(cost.activations)}",
        "arithmetic": f"{cost.flops * run.ranks.world:.2e} operations a step, "
        f"{cost.flops * run.ranks.world * run.steps:.2e} in all",
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
    return 8 * n_parameters(run.model) + cost.remembered + cost.activations


def in_micro_batches(run, cost):
    n = run.config.train.batch_size // run.ranks.world // cost.micro_batch
    processes = f" on {run.ranks.world} processes" if run.ranks.world > 1 else ""
    return processes + (f", {cost.micro_batch} at a time" if n > 1 else "")


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else str(timedelta(seconds=round(seconds)))
