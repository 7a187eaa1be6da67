"""Cost: what a step of a config needs of memory and compute, counted on fake tensors: no weight is
allocated. dry_run=true prints it."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from configs.cli import warn
from configs.schema import Config
from data.disk import filesize
from model.adapt import adapt
from model.block import blocks_of
from model.loss import GPU_CHUNK
from model.precision import PEAKS, Precision, choose_device, choose_precision
from model.pretrained import init_tokenizer
from model.transformer import build_model
from model.weights import count_parameters, trained_parameters
from training.optimizer import build_optimizers, state_tensors
from training.schedule import RunLength

GPU_MEMORY = {  # GB
    "B200": 180,
    "H200": 141,
    "H100": 80,
    "A100": 80,
    "L40S": 48,
    "A6000": 48,
    "V100": 32,
    "4090": 24,
    "3090": 24,
    "A10": 24,
    "L4": 24,
    "T4": 16,
}
FILLED = 0.9  # of it, at most: evaluation, communication and fragmentation need some
VOCAB_SIZES = {  # of tokenizers that have no setting for it
    "byte": 257,
    "char": 128,
    "gpt2": 50_257,
    "cl100k": 100_258,
    "o200k": 200_000,
}


class Cost(NamedTuple):
    """Of the weights, and of one row of a batch; sizes in bytes."""

    model: nn.Module  # of fake tensors
    states: dict[str, int]  # what is kept of the weights, in words
    flops: int
    activations: float  # kept for the backward pass
    loss: int  # a chunk of logits, with its gradients

    def memory(self, rows: int, shards: int) -> float:
        """Of a process that keeps one of `shards` parts of the states."""
        return sum(self.states.values()) / shards + rows * self.activations + self.loss


def count(config: Config, precision: Precision, vocab_size: int) -> Cost | None:
    """Nothing, with a warning, if a part does not support fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with FakeTensorMode(), precision.device:  # its kernels decide what is kept
            model = build_model(config.model, vocab_size)
            adapt(model, config.adapt)
            flops = row_flops(model, config)
            # what a second row adds: casts of the weights are kept once
            one, two = [kept_bytes(model, config, precision, rows) for rows in (1, 2)]
            state = state_tensors(model, build_optimizers(config.optimizer, model))
    except Exception as error:  # whatever it is, a run is not stopped
        warn(f"the FLOPs and the memory of this model are unknown ({error!s:.200})")
        return None

    activations: float = two - one
    if config.train.recompute == "block":  # kept: the inputs of all blocks, and one block
        n_blocks = len(blocks_of(model))
        stream = 4 * config.model.context_length * config.model.d_model
        activations = n_blocks * stream + activations / n_blocks
    # autocast keeps a copy of each weight in 16 bits
    weight = 4 if precision.dtype == torch.float32 else 6
    trained = sum(parameter.nbytes for parameter in trained_parameters(model).values())
    states = {
        "weights": weight * sum(parameter.numel() for parameter in model.parameters()),
        "gradients": trained,
        "optimizer": sum(tensor.nbytes for tensor in state.values()),
        "EMA": trained if config.ema.decay else 0,
    }
    # of a chunk: a logit and its gradient, each in 32 and in 16 bits. Of the head: the gradient of
    # a weight in 32 bits; that of a chunk, and the cast of the weight, in 16
    loss = vocab_size * (12 * GPU_CHUNK + 8 * config.model.d_model)
    return Cost(model, states, flops, activations, loss)


def fake_inputs(config: Config, rows: int) -> dict[str, Tensor]:
    """As wide as the model can take."""
    tokens = torch.zeros(rows, config.model.context_length, dtype=torch.long)
    inputs = {"tokens": tokens}
    if config.model.kind == "encoder_decoder":
        inputs["source"] = tokens
    if config.data.get("document_mask"):
        inputs["documents"] = tokens
    return inputs


def row_flops(model: Any, config: Config) -> int:
    """Of a forward and a backward pass, which is twice the work. torch counts only matmuls, so
    attention has to run as matmuls."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        hidden = model.hidden(**fake_inputs(config, 1))
        if config.model.kind == "encoder":  # masked: 15 % of the tokens are targets
            n_targets = round(0.15 * config.model.context_length)
            hidden = hidden[:, : max(1, n_targets)]
        model.head(hidden)
    return 3 * counter.get_total_flops()


def kept_bytes(model: Any, config: Config, precision: Precision, rows: int) -> int:
    """By a forward pass, for the backward pass."""
    storages: dict[int, Any] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor)
    with precision.autocast(), hooks:
        model.hidden(**fake_inputs(config, rows))
    return sum(storage.nbytes() for storage in storages.values())


def report(config: Config) -> str:
    """What dry_run=true prints: for this machine, or for plan.world GPUs of the kind plan.gpu."""
    train = config.train
    world = config.plan.world
    if train.batch_size % world:
        raise ValueError(f"train.batch_size must be a multiple of plan.world={world}")
    precision, memory, peak = machine(config)
    kind = config.tokenizer["kind"]  # where the text decides, 50,000 is a guess
    vocab_size = config.tokenizer.get("vocab_size") or VOCAB_SIZES.get(kind, 50_000)
    if config.init_from:
        vocab_size = init_tokenizer(config.init_from).vocab_size
    cost = count(config, precision, vocab_size)
    if cost is None:
        return f"model       {config.model.kind}, of unknown cost"

    states = ", ".join(f"{name} {filesize(size)}" for name, size in cost.states.items() if size)
    # it has the trained weights alone, which are as large as their gradients
    checkpoint = sum(cost.states.values()) - cost.states["weights"]
    lines = [
        f"model       {config.model.kind}, {count_parameters(cost.model)} at vocab {vocab_size:,}",
        f"step        {train.batch_size:,} rows of up to {config.model.context_length:,} tokens",
        f"compute     {cost.flops:.2e} FLOPs per row",
        f"memory      {states}, activations {filesize(cost.activations)} per row",
        *ways_to_fit(config, cost, memory),
        f"checkpoint  {filesize(checkpoint)}",
        *run_lines(config, cost, peak),
    ]
    return "\n".join(lines)


def machine(config: Config) -> tuple[Precision, float, float | None]:
    """(precision, memory of a process, peak FLOP/s if known)"""
    name = config.plan.gpu
    if name is None:
        precision = choose_precision(choose_device(config.device), config.precision)
        memory: float = host_memory()
        if precision.device.type == "cuda":
            memory = FILLED * torch.cuda.mem_get_info(precision.device)[1]
        return precision, memory, precision.peak_flops()
    name = name.upper()
    if name not in GPU_MEMORY:
        raise ValueError(f"plan.gpu is {name!r}; choose one of: {', '.join(GPU_MEMORY)}")
    if config.precision not in ("auto", "bf16"):
        raise ValueError(f"plan.gpu plans in bf16, not in {config.precision}; remove precision=")
    # counted with the kernels of a CPU, which keep more of short sequences
    bf16 = Precision(torch.device("cpu"), torch.bfloat16, "as if on that GPU")
    return bf16, FILLED * GPU_MEMORY[name] * 1e9, PEAKS[name]


def host_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def ways_to_fit(config: Config, cost: Cost, limit: float) -> Iterator[str]:
    """The largest micro-batch of each way of training."""
    world = config.plan.world
    ways = {"none": 1} if world == 1 else {"ddp": 1, "fsdp": world}
    for parallel, shards in ways.items():
        size = config.train.batch_size // world
        while size > 1 and cost.memory(size, shards) > limit:
            size = math.ceil(size / 2)
        needed = cost.memory(size, shards)
        fits = f"of {filesize(limit)}" if needed <= limit else "does not fit"
        way = f"parallel={parallel} train.micro_batch_size={size}"
        yield f"            {way}: {filesize(needed)}, {fits}"


def run_lines(config: Config, cost: Cost, peak: float | None) -> Iterator[str]:
    """Of the whole run, if its length does not depend on the text or the clock."""
    plan = config.plan
    train = config.train
    full_rows = SimpleNamespace(tokens_per_example=config.model.context_length)
    length = RunLength(replace(train, epochs=None), full_rows)
    steps = length.steps
    if math.isinf(steps):
        yield "training    a length unknown until the text is read"
        return
    recomputed = 4 / 3 if train.recompute == "block" else 1
    flops = steps * train.batch_size * cost.flops * recomputed
    yield f"training    {steps:,} steps, {steps * length.tokens_per_step:,} tokens, {flops:.2e} FLOPs"
    if peak:
        hours = flops / (peak * plan.mfu) / 3600
        time = f"{hours / plan.world:,.1f} hours at plan.mfu={plan.mfu:g}"
        price = f"${hours * plan.price:,.0f} at plan.price={plan.price:g}"
        yield f"time        {time}, {hours:,.1f} GPU hours, {price}"
