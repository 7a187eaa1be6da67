"""Cost: what a config needs of memory, time and money, counted on fake tensors: no weight is
allocated."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from configs.cli import warn
from configs.registry import build
from configs.schema import Config
from data.corpus import build_data
from data.disk import filesize
from data.objectives import Batch
from data.tokenizers.train import TOKENIZERS
from model.loss import GPU_CHUNK
from model.precision import PEAKS, choose_device, choose_precision
from model.transformer import build_model
from training.distributed import World
from training.muon import Muon
from training.optimizer import build_optimizers, groups_of, state_bytes
from training.schedule import UNKNOWN_STEPS, build_schedule
from training.step import recompute_blocks

Sizes = Sequence[int]

GPU_MEMORY = {  # GB
    **{"B200": 180, "H200": 141, "H100": 80, "A100": 80, "L40S": 48, "A6000": 48},
    **{"V100": 32, "4090": 24, "3090": 24, "A10": 24, "L4": 24, "T4": 16},
}
FILLED = 0.9  # of it, at most: evaluation, communication and fragmentation need some
MUON_COPIES = 6.5  # of all matrices of one shape, while they are orthogonalized; measured
VOCAB_SIZES = {"byte": 257, "char": 128, "gpt2": 50_258, "cl100k": 100_258, "o200k": 200_000}
PARTS = ("norm", "cross", "attention", "ffn", "embedding", "position", "head")


def check_parts(config: Config) -> None:
    """Refuse parts that cannot be built, or a model that is too large, before any text is read."""
    hint = "choose a smaller size=, or smaller parts"
    try:
        with torch.device("meta"):
            model = build_model(config.model, 256)
    except RuntimeError as error:  # the number of bytes overflows
        raise MemoryError(f"a model of these sizes fits in no memory ({error}); {hint}") from None
    weights, memory = sum(p.nbytes for p in model.parameters()), host_memory()
    if weights > memory and not config.dry_run:
        sizes = f"the weights need {filesize(weights)}, and the memory is {filesize(memory)}"
        raise MemoryError(f"{sizes}; {hint}")
    build_optimizers(config.optimizer, model)
    train = config.train
    is_timed = train.minutes is not None and train.tokens is train.epochs is None
    build_schedule(config.schedule, train.steps or (math.inf if is_timed else UNKNOWN_STEPS))
    build_data(config)
    if not config.init_from and config.tokenizer.get("kind") != "hub":  # which have one
        build("tokenizer", TOKENIZERS, config.tokenizer, {})


def host_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Cost(NamedTuple):
    """Of the weights, and of one row of a batch; sizes in bytes."""

    parameters: Counter[str]  # their number, by part
    optimizer: int
    update: float  # while Muon orthogonalizes matrices
    casts: int  # of the weights, for autocast
    flops: float
    activations: float  # kept for the backward pass
    loss: int  # a chunk of logits, with its gradients

    @property
    def states(self) -> int:
        """Weights, gradients and optimizer."""
        return 8 * self.parameters.total() + self.optimizer

    def memory(self, rows: int, shards: int) -> float:
        """Of a process that keeps one of `shards` parts of the weights."""
        working = max(rows * self.activations + self.loss, self.update / shards)
        return (self.states + self.casts) / shards + working


def count(config: Config, dtype: torch.dtype, vocab_size: int) -> Cost:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode():
        model = build_model(config.model, vocab_size)
        with FlopCounterMode(display=False, custom_mapping=attention_flops()) as counter:
            activations: float = row_bytes(model, config, dtype)
        if config.train.recompute == "block":  # of which one runs again at a time
            recompute_blocks(model)
            inputs = row_bytes(model, config, dtype)
            activations = inputs + (activations - inputs) / config.model.n_layers
        optimizers = build_optimizers(config.optimizer, model)
    parameters: Counter[str] = Counter()  # a tied embedding counts where it is first used
    for name, parameter in model.named_parameters():
        part = next((part for part in PARTS if part in re.split("[._]", name)), "other")
        parameters["cross-attention" if part == "cross" else part] += parameter.numel()
    matrices: Counter[torch.Size] = Counter()
    for group in groups_of([o for o in optimizers if isinstance(o, Muon)]):
        for parameter in group["params"]:
            matrices[parameter.shape] += parameter.nbytes
    return Cost(
        parameters,
        optimizer=state_bytes(model, optimizers),
        update=MUON_COPIES * max(matrices.values(), default=0),
        casts=0 if dtype == torch.float32 else 2 * parameters.total(),
        flops=counter.get_total_flops() / 3,  # of one row and of two
        activations=activations,
        loss=vocab_size * (12 * GPU_CHUNK + 8 * config.model.d_model),
    )


def row_bytes(model: Any, config: Config, dtype: torch.dtype) -> int:
    """What a second row adds to the activations: casts of the weights are kept once."""
    one, two = (kept_bytes(model, fake_batch(config, rows), dtype) for rows in (1, 2))
    return two - one


def attention_flops() -> dict[Any, Callable[..., int]]:
    """Of the CPU's attention kernel, which torch does not count."""

    def forward(query: Sizes, key: Sizes, value: Sizes, *_: Any, **__: Any) -> int:
        products = math.prod(query[:-1]) * key[-2]
        return 2 * products * (query[-1] + value[-1])

    def backward(gradient: Sizes, *inputs: Any, **__: Any) -> int:
        return 2 * forward(*inputs)

    name = "_scaled_dot_product_flash_attention_for_cpu"
    operations = torch.ops.aten
    return {
        getattr(operations, name): forward,
        getattr(operations, f"{name}_backward"): backward,
    }


def fake_batch(config: Config, rows: int) -> Batch:
    """As wide as the model can take; a masked language model has targets at 15 % of the tokens."""
    length = config.model.context_length
    tokens = torch.zeros(rows, length, dtype=torch.long)
    inputs = {"tokens": tokens}
    if config.model.kind == "encoder_decoder":
        inputs["source"] = tokens
    targets = max(1, round(0.15 * length)) if config.model.kind == "encoder" else length
    return Batch(inputs, tokens[:, :targets], rows * targets)


def kept_bytes(model: Any, batch: Batch, dtype: torch.dtype) -> int:
    """By a forward pass for the backward pass, which runs, too, for its FLOPs."""
    storages: dict[int, Any] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    autocast = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor), autocast:
        hidden = model.hidden(**batch.inputs)
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage()._cdata, None)
    model.head(hidden[:, : batch.targets.shape[1]]).sum().backward()
    return sum(storage.nbytes() for storage in storages.values())


def ideal_seconds(config: Config, world: World, vocab_size: int) -> float | None:
    """Of a step at the peak FLOP/s of the GPU, if that is known: MFU is measured by it."""
    peak = world.precision.peak_flops()
    if peak is None:
        return None
    try:
        cost = count(config, world.precision.dtype, vocab_size)
    except Exception as error:  # of a part that fake tensors do not support
        warn(f"no MFU, for the FLOPs of this model are unknown ({error!s:.100})")
        return None
    return cost.flops * config.train.batch_size / world.size / peak


def report(config: Config) -> str:
    """What dry_run=true prints: for this machine, or for plan.world GPUs of the kind plan.gpu."""
    check_parts(config)
    plan, train, length = config.plan, config.train, config.model.context_length
    gpu = (plan.gpu or "").upper()
    if gpu and gpu not in GPU_MEMORY:
        raise ValueError(f"plan.gpu is {plan.gpu!r}; choose one of: {', '.join(GPU_MEMORY)}")
    if train.batch_size % plan.world:
        raise ValueError(f"train.batch_size must be a multiple of plan.world={plan.world}")
    device = choose_device(config.device)
    precision = choose_precision(device, config.precision)
    kind = config.tokenizer.get("kind", "")
    vocab_size = config.tokenizer.get("vocab_size") or VOCAB_SIZES.get(kind, 50_000)
    dtype = torch.bfloat16 if gpu else precision.dtype
    try:
        cost = count(config, dtype, vocab_size)
    except Exception as error:  # of a part that fake tensors do not support
        return f"model       {config.model.kind}; its cost is unknown ({error!s:.200})"
    if gpu:
        memory, peak = FILLED * GPU_MEMORY[gpu] * 1e9, PEAKS.get(gpu)
    elif device.type == "cuda":
        memory, peak = FILLED * torch.cuda.mem_get_info(device)[1], precision.peak_flops()
    else:
        memory, peak = host_memory(), None
    sizes = ", ".join(f"{part} {size:,}" for part, size in cost.parameters.most_common())
    n, tokens = cost.parameters.total(), train.batch_size * length
    lengths = (train.steps, train.tokens and math.ceil(train.tokens / tokens), math.inf)
    steps = min(limit for limit in lengths if limit is not None)
    flops = cost.flops * train.batch_size * steps * (4 / 3 if train.recompute == "block" else 1)
    known = steps < math.inf
    run = (
        f"{steps:,} steps, {steps * tokens:,} tokens, {flops:.2e} FLOPs"
        if known
        else "a length unknown until the text is read"
    )
    states = f"weights and gradients {filesize(8 * n)}, optimizer {filesize(cost.optimizer)}"
    partial = ""
    if config.eval.every is not None:
        partial = f"every {config.eval.every:,} steps on {config.eval.max_examples:,} examples; "
    lines = [
        f"model       {config.model.kind}, {n:,} parameters at vocab {vocab_size:,}: {sizes}",
        f"training    {run}; {train.batch_size:,} rows of up to {length:,} tokens per step",
        f"evaluation  {partial}at the end on the whole validation set",
        f"compute     {cost.flops:.2e} FLOPs per row",
        f"memory      {states}, activations {filesize(round(cost.activations))} per row",
        *ways_to_fit(config, cost, memory),
        f"checkpoint  {filesize(4 * n + cost.optimizer)}",
    ]
    if peak and known:
        hours = flops / (peak * plan.mfu) / 3600
        price = f"${hours * plan.price:,.0f} at plan.price={plan.price:g}"
        time = f"{hours / plan.world:,.1f} hours at plan.mfu={plan.mfu:g}"
        lines.append(f"time        {time}, {hours:,.1f} GPU hours, {price}")
    return "\n".join(lines)


def ways_to_fit(config: Config, cost: Cost, limit: float) -> Iterator[str]:
    """The largest micro-batch of each way of training."""
    world = config.plan.world
    for parallel in ("none",) if world == 1 else ("ddp", "fsdp"):
        shards = world if parallel == "fsdp" else 1
        size = config.train.batch_size // world
        while size > 1 and cost.memory(size, shards) > limit:
            size = math.ceil(size / 2)
        needed = cost.memory(size, shards)
        fits = f"of {filesize(round(limit))}" if needed <= limit else "does not fit"
        way = f"parallel={parallel} train.micro_batch_size={size}"
        yield f"            {way}: {filesize(round(needed))}, {fits}"
