"""Plan: what dry_run=true prints: parameters, memory, compute and time of a run, for this machine
or for plan.world GPUs of the kind plan.gpu."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch
from rich.filesize import decimal
from torch import nn

from configs.schema import Config
from data.corpus import build_data
from model.precision import Precision, choose_device, choose_precision
from model.pretrained import init_tokenizer
from model.weights import count_parameters
from training.classifier import with_classes
from training.cost import Cost, count, peak_flops, read_gpus
from training.schedule import RunLength
from training.settings import host_memory

FILLED = 0.9  # of the memory, at most: evaluation, communication and fragmentation need some
VOCAB_SIZES = {  # without special tokens, for tokenizers without a setting for it
    "byte": 256,
    "char": 127,
    "gpt2": 50_256,
    "cl100k": 100_257,
    "o200k": 199_999,
}


def report(config: Config) -> str:
    rows = config.train.batch_size
    world = config.plan.world
    if rows % world:
        raise ValueError(f"train.batch_size must be a multiple of plan.world={world}")

    precision, memory, peak = machine(config)

    _, objective, _ = build_data(config)
    # if its size depends on the text, 50,000 is a guess
    known = VOCAB_SIZES.get(config.tokenizer["kind"], 50_000) + len(objective.specials)
    vocab_size = config.tokenizer.get("vocab_size") or known
    if config.init_from:
        vocab_size = init_tokenizer(config.init_from).vocab_size

    if objective.input_kind == "labels":
        config = with_classes(config, config.model.classes or ["", ""])  # how many is not known yet
    cost = count(config, precision, vocab_size)
    if cost is None:
        return f"model       {config.model.kind}, cost unknown"

    states = ", ".join(f"{name} {decimal(size)}" for name, size in cost.states.items() if size)
    # it has only the trained weights, which are as large as their gradients
    checkpoint = sum(cost.states.values()) - cost.states["weights"]
    lines = [
        f"model       {config.model.kind}, {count_parameters(cost.model)} at vocab {vocab_size:,}",
        f"            {parameters_of_parts(cost.model)}",
        f"step        {rows:,} rows of up to {config.model.context_length:,} tokens",
        f"compute     {cost.flops:.2e} FLOPs per row",
        f"memory      {states}, activations {decimal(int(cost.activations))} per row",
        *ways_to_fit(config, cost, memory),
        f"checkpoint  {decimal(checkpoint)}",
        *run_lines(config, cost, peak),
    ]
    return "\n".join(lines)


def parameters_of_parts(model: nn.Module) -> str:
    """Parameters by part; a tied embedding counts where it is first used."""
    sizes: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        # the part of a block, or of the model
        part, *_ = re.sub(r".*\.blocks\.\d+\.", "", name).split(".")
        sizes[part] += parameter.numel()
    return ", ".join(f"{part} {size:,}" for part, size in sizes.most_common())


def machine(config: Config) -> tuple[Precision, float, float | None]:
    """Returns (precision, memory of a process, peak FLOP/s if known)."""
    if config.plan.gpu is None:
        precision = choose_precision(choose_device(config.device), config.precision)
        memory: float = host_memory()
        if precision.device.type == "cuda":
            memory = FILLED * torch.cuda.mem_get_info(precision.device)[1]
        return precision, memory, peak_flops(precision)

    name = str(config.plan.gpu).upper()
    gpus = {key: gpu for key, gpu in read_gpus().items() if "memory" in gpu}
    if name not in gpus:
        raise ValueError(f"plan.gpu is {name!r}; choose one of: {', '.join(gpus)}")
    if config.precision not in ("auto", "bf16"):
        raise ValueError(f"plan.gpu plans in bf16, not in {config.precision}; remove precision=")

    # counted with the kernels of a CPU, which keep more for short sequences
    bf16 = Precision(torch.device("cpu"), torch.bfloat16, "as if on that GPU")
    gpu = gpus[name]
    return bf16, FILLED * gpu["memory"] * 1e9, gpu["tflops"] * 1e12


def ways_to_fit(config: Config, cost: Cost, limit: float) -> Iterator[str]:
    """A line for each parallelism: the largest micro-batch that fits."""
    world = config.plan.world
    ways = {"none": 1} if world == 1 else {"ddp": 1, "fsdp": world}

    for parallel, shards in ways.items():
        size = config.train.batch_size // world
        while (needed := cost.memory(size, shards)) > limit and size > 1:
            size = math.ceil(size / 2)

        fits = f"of {decimal(int(limit))}" if needed <= limit else "does not fit"
        way = f"parallel={parallel} train.micro_batch_size={size}"
        yield f"            {way}: {decimal(int(needed))}, {fits}"


def run_lines(config: Config, cost: Cost, peak: float | None) -> Iterator[str]:
    """Lines about the whole run, if its length does not depend on the text or the clock."""
    plan = config.plan
    train = config.train
    length = RunLength(replace(train, epochs=None), config.model.context_length)
    if math.isinf(length.scheduled_steps):
        yield "training    a length unknown until the text is read, or train.minutes are over"
        return

    n_tokens = length.scheduled_steps * length.tokens_per_step
    recomputed = 4 / 3 if train.recompute == "block" else 1
    flops = length.scheduled_steps * train.batch_size * cost.flops * recomputed
    steps = f"{'at most ' * bool(train.epochs or train.minutes)}{length.scheduled_steps:,} steps"
    yield f"training    {steps}, {n_tokens:,} tokens, {flops:.2e} FLOPs"
    if peak:
        hours = flops / (peak * plan.mfu) / 3600
        time = f"{hours / plan.world:,.1f} hours at plan.mfu={plan.mfu:g}"
        price = f"${hours * plan.price:,.0f} at plan.price={plan.price:g}"
        yield f"time        {time}, {hours:,.1f} GPU hours, {price}"
