"""Cost: what a config needs of memory, time and money, counted on fake tensors: no weight is allocated."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

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
from training.schedule import build_schedule
from training.step import recompute_blocks

GPU_MEMORY = {  # GB
    **{"B200": 180, "H200": 141, "H100": 80, "A100": 80, "L40S": 48, "A6000": 48},
    **{"V100": 32, "4090": 24, "3090": 24, "A10": 24, "L4": 24, "T4": 16},
}
FILLED = 0.9  # of it, at most: evaluation, communication and fragmentation need some
MUON_COPIES = 6.5  # of all matrices of one shape, while they are orthogonalized; measured
VOCAB_SIZES = {"byte": 257, "char": 128, "gpt2": 50_258, "cl100k": 100_258, "o200k": 200_000}
Sizes = Sequence[int]
PARTS = ("norm", "cross", "attention", "ffn", "embedding", "position", "head")


def check_parts(config: Config) -> None:
    """Refuse a part that cannot be built, or a model that is too large, before any text is read."""
    hint = "choose a smaller size=, or smaller parts"
    try:
        with torch.device("meta"):
            model = build_model(config.model, 256)
    except RuntimeError as error:  # the number of bytes overflows
        reason = f"a model of these sizes fits in no memory ({error})"
        raise MemoryError(f"{reason}; {hint}") from None
    weights = sum(parameter.nbytes for parameter in model.parameters())
    memory = host_memory()
    if weights > memory and not config.dry_run:
        sizes = f"the weights need {filesize(weights)}, and the memory is {filesize(memory)}"
        raise MemoryError(f"{sizes}; {hint}")
    build_optimizers(config.optimizer, model)
    build_schedule(config.schedule, config.train.steps or math.inf)
    build_data(config)
    if not config.init_from and config.tokenizer.get("kind") != "hub":  # which have one
        build("tokenizer", TOKENIZERS, config.tokenizer, {})


def host_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass
class Cost:
    """Of the weights, and of one row of a batch; sizes in bytes."""

    parameters: Counter[str]  # their number, by part
    optimizer: int
    update: int  # while Muon orthogonalizes matrices
    flops: float
    activations: int  # kept for the backward pass
    recomputed: int  # kept with train.recompute=block
    loss: int  # a chunk of logits, with its gradients

    @property
    def n(self) -> int:
        return self.parameters.total()

    @property
    def checkpoint(self) -> int:
        return 4 * self.n + self.optimizer

    def memory(self, rows: int, recompute: str, shards: int, dtype: torch.dtype) -> float:
        """Of one process, which keeps one of `shards` parts of weights, gradients and optimizer."""
        states = (8 * self.n + self.optimizer) / shards
        casts = 0 if dtype == torch.float32 else 2 * self.n / shards
        row = self.recomputed if recompute == "block" else self.activations
        return states + casts + max(rows * row + self.loss, self.update / shards)


def count(config: Config, dtype: torch.dtype, vocab_size: int) -> Cost:
    """All is linear in the number of layers, so models of one layer and of two are counted."""
    n = config.model.n_layers
    if n < 3 or config.model.encoder.n_layers not in (None, n):
        return count_model(config, dtype, vocab_size)
    encoder = replace(config.model.encoder, n_layers=None)
    costs = []
    for layers in (1, 2):
        model = replace(config.model, n_layers=layers, encoder=encoder)
        costs.append(count_model(replace(config, model=model), dtype, vocab_size))
    one, two = costs

    def grown(name: str) -> Any:
        first, second = getattr(one, name), getattr(two, name)
        return first + (n - 1) * (second - first)

    parameters = Counter()
    for part, size in two.parameters.items():
        parameters[part] = size + (n - 2) * (size - one.parameters[part])
    numbers = {name: grown(name) for name in ("optimizer", "update", "flops", "activations")}
    block = (numbers["activations"] - grown("recomputed")) / n  # one block runs again at a time
    recomputed = round(grown("recomputed") + block)
    return Cost(parameters, **numbers, recomputed=recomputed, loss=two.loss)


def count_model(config: Config, dtype: torch.dtype, vocab_size: int) -> Cost:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode():
        model = build_model(config.model, vocab_size)
        rows = [fake_batch(config, n) for n in (1, 2)]  # so that casts of the weights cancel out
        with FlopCounterMode(display=False, custom_mapping=attention_kernels()) as counter:
            one, two = (kept_bytes(model, batch, dtype) for batch in rows)
        optimizers = build_optimizers(config.optimizer, model)
        optimizer = state_bytes(model, optimizers)
        update = update_bytes(optimizers)
        parameters = count_parameters(model)
        recompute_blocks(model)
        inputs_one, inputs_two = (kept_bytes(model, batch, dtype) for batch in rows)
    flops = counter.get_total_flops() / 3
    loss = vocab_size * (12 * GPU_CHUNK + 8 * config.model.d_model)
    kept = inputs_two - inputs_one
    return Cost(parameters, optimizer, update, flops, two - one, kept, loss)


def attention_kernels() -> dict[Any, Callable[..., int]]:
    """The FLOPs of the CPU's attention kernel, which torch does not count."""

    def forward(query: Sizes, key: Sizes, value: Sizes, *_: Any, **__: Any) -> int:
        products = math.prod(query[:-1]) * key[-2]
        return 2 * products * (query[-1] + value[-1])

    def backward(grad: Sizes, *inputs: Any, **__: Any) -> int:
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
    return Batch(inputs, tokens, rows * targets)


def kept_bytes(model: nn.Module, batch: Batch, dtype: torch.dtype) -> int:
    """What a forward pass keeps for the backward pass, which runs, too, for its FLOPs."""
    storages: dict[int, Any] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            hidden = model.hidden(**batch.inputs)
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage()._cdata, None)
    targets = batch.count // len(batch.targets)
    model.head(hidden[:, :targets]).sum().backward()
    return sum(storage.nbytes() for storage in storages.values())


def update_bytes(optimizers: list[torch.optim.Optimizer]) -> int:
    """Muon orthogonalizes all matrices of one shape at once."""
    sizes: Counter[torch.Size] = Counter()
    for group in groups_of([o for o in optimizers if isinstance(o, Muon)]):
        for parameter in group["params"]:
            sizes[parameter.shape] += parameter.nbytes
    return round(MUON_COPIES * max(sizes.values(), default=0))


def count_parameters(model: nn.Module) -> Counter[str]:
    """By part; a tied embedding counts where it is first used."""
    sizes: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        words = re.split("[._]", name)
        part = next((part for part in PARTS if part in words), "other")
        sizes["cross-attention" if part == "cross" else part] += parameter.numel()
    return sizes


def ideal_seconds(config: Config, world: World, vocab_size: int) -> float | None:
    """Of a step at the peak FLOP/s of the GPU, if that is known: MFU is measured by it."""
    peak = world.precision.peak_flops()
    if peak is None:
        return None
    try:
        flops = count(config, world.precision.dtype, vocab_size).flops
    except Exception as error:  # of a part that fake tensors do not support
        warn(f"the FLOPs of this model are unknown ({error!s:.100}), so there is no MFU")
        return None
    return flops * config.train.batch_size / world.size / peak


# ---- what dry_run=true prints


def report(config: Config) -> str:
    """For this machine, or for plan.world GPUs of the kind plan.gpu. No text is read."""
    check_parts(config)
    gpu = (config.plan.gpu or "").upper()
    if gpu and gpu not in GPU_MEMORY:
        raise ValueError(f"plan.gpu is {config.plan.gpu!r}; choose one of: {', '.join(GPU_MEMORY)}")
    if config.train.batch_size % config.plan.world:
        raise ValueError(f"train.batch_size must be a multiple of plan.world={config.plan.world}")
    device = choose_device(config.device)
    precision = choose_precision(device, config.precision)
    dtype = torch.bfloat16 if gpu else precision.dtype
    vocab_size = known_vocab_size(config)
    try:
        cost = count(config, dtype, vocab_size)
    except Exception as error:  # of a part that fake tensors do not support
        return f"model       {config.model.kind}; its cost is unknown ({error!s:.200})"
    sizes = ", ".join(f"{part} {size:,}" for part, size in cost.parameters.most_common())
    lines = [
        f"model       {config.model.kind}, {cost.n:,} parameters: {sizes}",
        f"            at a vocabulary of {vocab_size:,}",
        f"training    {describe_length(config)}",
        f"evaluation  {describe_evaluation(config)}",
        f"compute     {cost.flops:.2e} FLOPs per row{total_flops(config, cost)}",
        f"memory      weights and gradients {filesize(8 * cost.n)}, "
        f"optimizer {filesize(cost.optimizer)}, activations {filesize(cost.activations)} per row",
        f"checkpoint  {filesize(cost.checkpoint)}",
    ]
    if gpu:
        lines += list(ways_to_fit(config, cost, FILLED * GPU_MEMORY[gpu] * 1e9, dtype))
        lines.append(f"time        {describe_time(config, cost, PEAKS[gpu])}")
    elif device.type == "cuda":
        lines += list(ways_to_fit(config, cost, FILLED * torch.cuda.mem_get_info(device)[1], dtype))
        if peak := precision.peak_flops():
            lines.append(f"time        {describe_time(config, cost, peak)}")
    else:
        rows = max(1, (1 << 14) // config.model.context_length)
        needed = cost.memory(min(rows, config.train.batch_size), config.train.recompute, 1, dtype)
        fits = "" if needed < host_memory() else ", which does not fit"
        lines.append(f"            about {filesize(needed)} of {filesize(host_memory())}{fits}")
    return "\n".join(lines)


def known_vocab_size(config: Config) -> int:
    """As far as it is known before any text is read."""
    kind = config.tokenizer.get("kind")
    return config.tokenizer.get("vocab_size") or VOCAB_SIZES.get(kind, 50_000)


def n_steps(config: Config) -> int | None:
    """Of a run whose length is set in steps or tokens; the number of examples is not known."""
    train = config.train
    limits = [train.steps] if train.steps is not None else []
    if train.tokens is not None:
        limits.append(math.ceil(train.tokens / (train.batch_size * config.model.context_length)))
    return min(limits, default=None)


def describe_length(config: Config) -> str:
    train = config.train
    tokens = train.batch_size * config.model.context_length
    per_step = f"{train.batch_size:,} rows of up to {config.model.context_length:,} tokens per step"
    steps = n_steps(config)
    if steps is not None:
        return f"{steps:,} steps, {steps * tokens:,} tokens; {per_step}"
    length = f"{train.epochs:g} epochs" if train.epochs else f"{train.minutes:g} minutes"
    return f"{length}; {per_step}"


def describe_evaluation(config: Config) -> str:
    full = "at the end on the whole validation set"
    if config.eval.every is None:
        return full
    partial = f"every {config.eval.every:,} steps on {config.eval.max_examples:,} examples"
    return f"{partial}, and {full}"


def total_flops(config: Config, cost: Cost) -> str:
    steps = n_steps(config)
    return "" if steps is None else f", {cost.flops * config.train.batch_size * steps:.2e} in all"


def ways_to_fit(config: Config, cost: Cost, limit: float, dtype: torch.dtype) -> Iterator[str]:
    """The largest micro-batch of each way of training."""
    world = config.plan.world
    rows = config.train.batch_size // world
    for parallel in ("none",) if world == 1 else ("ddp", "fsdp"):
        shards = world if parallel == "fsdp" else 1
        for recompute in ("none", "block"):
            size = rows
            while size > 1 and cost.memory(size, recompute, shards, dtype) > limit:
                size = math.ceil(size / 2)
            needed = cost.memory(size, recompute, shards, dtype)
            way = f"parallel={parallel} train.recompute={recompute} train.micro_batch_size={size}"
            fits = "" if needed <= limit else ", does not fit"
            yield f"  {way:<66} {filesize(round(needed)):>9}{fits}"


def describe_time(config: Config, cost: Cost, peak: float) -> str:
    plan, steps = config.plan, n_steps(config)
    if steps is None:
        return "unknown before the text is read"
    flops = cost.flops * config.train.batch_size * steps
    if config.train.recompute == "block":
        flops *= 4 / 3
    hours = flops / (peak * plan.mfu) / 3600
    price = f"${hours * plan.price:,.0f} at ${plan.price:g} per hour"
    return (
        f"{hours / plan.world:,.1f} hours, {hours:,.1f} GPU hours, {price}; plan.mfu={plan.mfu:g}"
    )
