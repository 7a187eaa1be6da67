"""Estimate: memory, time and cost of a run on other hardware, counted on fake tensors."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from configs.registry import build
from data.disk import filesize
from data.objectives import Batch
from model.block import blocks_of
from model.loss import GPU_CHUNK
from model.precision import PEAKS, Precision, choose_device, choose_precision
from model.transformer import build_model
from training.optimizer import OPTIMIZERS
from training.plan import check_batch_size
from training.profile import FILLED, count_flops_and_activations, divisors
from training.step import recompute_blocks

GPU_MEMORY = {"B200": 180, "H200": 141, "H100": 80, "A100": 80, "L40S": 48, "A6000": 48, "V100": 32,
              "4090": 24, "3090": 24, "A10": 24, "L4": 24, "T4": 16}  # GB  # fmt: skip
VOCAB_SIZES = {
    "byte": 257,
    "char": 128,
    "gpt2": 50_258,
    "cl100k": 100_258,
    "o200k": 200_000,
    "hub": 50_000,
}
MUON_COPIES = 6.5  # of the matrices, as measured
DISK_SPEED = 1e9  # bytes per second that a checkpoint is written with


class Counts(NamedTuple):
    """Of a model and one row of a batch, in bytes where nothing else is said."""

    parameters: int  # their number
    largest_block: int  # parameters, their number
    outside_blocks: int  # likewise
    optimizer: int
    update: int  # while Muon orthogonalizes all matrices of one shape
    matrix: int  # the largest of them
    flops: float
    activations: int
    recomputed: int  # activations with train.recompute=block
    loss: int  # a chunk of logits and its gradients


def vocab_size(config):
    return config.tokenizer.get("vocab_size") or VOCAB_SIZES[config.tokenizer["kind"]]


def fake_batch(config, rows):
    """Full rows, as wide as the model can take; of a masked language model, targets at 15 % of the tokens."""
    length = config.model.context_length
    tokens = torch.zeros(rows, length, dtype=torch.long)
    inputs = {"tokens": tokens} | (
        {"source": tokens} if config.model.kind == "encoder_decoder" else {}
    )
    targets = length if config.model.kind != "encoder" else max(1, round(0.15 * length))
    return Batch(inputs, tokens, rows * targets)


def count(config, dtype):
    """The Counts of a config whose matmuls run in dtype. All are linear in the number of layers."""
    n = config.model.n_layers
    if config.model.encoder.n_layers not in (None, n):
        return count_layers(config, dtype)
    encoder = replace(config.model.encoder, n_layers=None)
    models = (replace(config.model, n_layers=layers, encoder=encoder) for layers in (1, 2))
    one, two = (count_layers(replace(config, model=model), dtype) for model in models)
    return Counts(*(a + (n - 1) * (b - a) for a, b in zip(one, two, strict=True)))


def count_layers(config, dtype):
    """Of each pair, the second has its blocks recomputed; rows are told apart from copies of the weights."""
    precision, flops, activations = Precision(torch.device("cpu"), dtype, "assumed"), [], []
    vocabulary = vocab_size(config)
    with FakeTensorMode():
        model = build_model(config.model, vocabulary)
        for recompute in (False, True):
            if recompute:
                recompute_blocks(model)
            one, two = (
                count_flops_and_activations(model, precision, fake_batch(config, n)) for n in (1, 2)
            )
            activations.append(two[1] - one[1])
            flops.append(one[0])
        blocks = blocks_of(model)
        sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
        inputs = 4 * config.model.context_length * config.model.d_model * len(blocks)
        kept, outside = activations
        recomputed = (
            outside + inputs + (kept - outside) // len(blocks)
        )  # while one block runs again
        optimizer, groups = (
            build("optimizer", OPTIMIZERS, config.optimizer, {"model": model}),
            Counter(),
        )
        for muon in [o for o in optimizer.optimizers if isinstance(o, torch.optim.Muon)]:
            for p in (p for group in muon.param_groups for p in group["params"]):
                groups[p.shape] += MUON_COPIES * p.nbytes
        parameters = sum(p.numel() for p in model.parameters())
        loss = vocabulary * (12 * GPU_CHUNK + 8 * config.model.d_model)
        state = sum(tensor.nbytes for tensor in optimizer.expected_state().values())
        update = max(groups.values(), default=0)
        matrix = max((4 * shape.numel() for shape in groups), default=0)
        outside_blocks = parameters - sum(sizes)
        sizes = parameters, max(sizes), outside_blocks, state, update, matrix
        return Counts(*sizes, flops[0], kept, recomputed, loss)


def memory(counts, parallel, recompute, world_size, rows, dtype):
    """Bytes that one process needs for micro-batches of so many rows."""
    half = 0 if dtype == torch.float32 else 2
    states, casts, update = (
        8 * counts.parameters + counts.optimizer,
        half * counts.parameters,
        counts.update,
    )
    if parallel == "fsdp":  # while one block runs, the next one is gathered
        states /= world_size
        update = 2 * min(
            world_size * counts.matrix, update / MUON_COPIES
        )  # whole matrices and their results
        casts = (half or 4) * (
            2 * counts.largest_block + counts.outside_blocks
        ) + 4 * counts.largest_block
    kept = rows * (counts.recomputed if recompute == "block" else counts.activations) + counts.loss
    return states + casts + max(kept, update)


def preview(config):
    """What dry_run=true prints before it reads any text or measures anything."""
    counts = count(config, choose_precision(choose_device(config.device), config.precision).dtype)
    n, states, row = counts.parameters, 8 * counts.parameters + counts.optimizer, counts.activations
    return f"""\
estimate    {n:,} parameters at vocab {vocab_size(config):,}: with gradients and optimizer {filesize(states)}
            per sequence {counts.flops:.2e} FLOPs, activations {filesize(row)}
"""


def estimate(config):
    """The lines that dry_run=plan prints: which ways of training fit on `world` GPUs, and what one costs."""
    gpu = config.gpu.upper()
    if gpu not in GPU_MEMORY:
        raise ValueError(f"gpu is {config.gpu!r}; choose one of: {', '.join(GPU_MEMORY)}")
    if config.parallel == "none" and config.world > 1:
        raise ValueError(f"parallel=none, but world is {config.world}; choose ddp or fsdp")
    world, train, batch_size = config.world, config.train, config.train.batch_size
    check_batch_size(train, world)
    tokens = batch_size * config.model.context_length
    limits = [train.steps, train.tokens and math.ceil(train.tokens / tokens)]
    if limits == [None, None]:
        raise ValueError(
            "dry_run=plan needs the length of the run: set train.steps or train.tokens"
        )
    steps, counts = min(n for n in limits if n is not None), count(config, torch.bfloat16)
    flops, limit = counts.flops * batch_size * steps, FILLED * GPU_MEMORY[gpu] * 1e9
    options, cheapest = [], None
    auto = train.micro_batch_size == "auto"
    rows = divisors(batch_size // world) if auto else [train.micro_batch_size]
    for recompute, parallel in product(("none", "block"), parallels(config)):
        n, size = largest_micro_batch(counts, parallel, recompute, world, rows, limit)
        option = f"parallel={parallel} train.recompute={recompute} train.micro_batch_size={n}"
        options.append(
            f"  {option:<66} {filesize(size):>9}{'' if size <= limit else ', does not fit'}"
        )
        if size <= limit and not cheapest:  # without recomputing, if that fits
            cheapest = option, flops * (4 / 3 if recompute == "block" else 1)
    gpus = f"{world} x {gpu} with {GPU_MEMORY[gpu]} GB, of which {FILLED:.0%} are used"
    checkpoint = 4 * counts.parameters + counts.optimizer
    lines = [
        f"model       {config.model.kind}, {counts.parameters:,} parameters, vocab {vocab_size(config):,}",
        f"training    {steps:,} steps of {batch_size:,} rows, {tokens:,} tokens; {flops:.2e} FLOPs",
        f"memory      per GPU in bfloat16, for {gpus}:",
        *options,
        f"checkpoint  {filesize(checkpoint)}, {checkpoint / DISK_SPEED:.0f} s at 1 GB/s",
    ]
    if cheapest:
        option, flops = cheapest
        hours, plan = flops / (PEAKS[gpu] * config.plan.mfu) / 3600, config.plan
        cost = f"{hours / world / 24:,.1f} days, {hours:,.0f} GPU hours, ${hours * plan.price:,.0f}"
        assumed = f"at plan.mfu={plan.mfu:g} and plan.price={plan.price:g} dollars per GPU hour"
        lines += [f"cheapest    {option}", f"cost        {cost}, {assumed}"]
    else:
        lines += ["cheapest    none of these fits; take more or larger GPUs, or a smaller size="]
    return "\n".join(lines)


def parallels(config):
    if config.world == 1:
        return ("none",)
    return ("ddp", "fsdp") if config.parallel == "auto" else (config.parallel,)


def largest_micro_batch(counts, parallel, recompute, world_size, candidates, limit):
    """(rows, bytes) of the first of the descending candidates within the limit; of the last if none is."""
    sizes = [
        (n, memory(counts, parallel, recompute, world_size, n, torch.bfloat16)) for n in candidates
    ]
    return next((size for size in sizes if size[1] <= limit), sizes[-1])
