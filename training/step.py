"""What a training step is made of; train.py has the step itself."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from configs.cli import warn
from configs.schema import Config, LossConfig
from data.loader import SORT_GROUP
from data.objectives import Batch
from data.shuffle import hash_seed
from model.block import AttentionContext, Shared, States, blocks_of
from model.loss import loss
from training.distributed import World
from training.run import Run

CPU_TOKENS = 1 << 14  # in a micro-batch on a CPU, at most
# columns of metrics.jsonl, whose names no other loss or metric may have
COLUMNS = {"step", "tokens", "seconds", "loss", "lr", "grad_norm"}
COLUMNS |= {"tokens_per_second", "mfu", "full"}
MANY_BLOCKS = 36  # compiling all of them as one graph would take minutes


class LossModule(nn.Module):
    """Maps a batch to its losses: the module that is compiled, sharded, and wrapped by DDP."""

    def __init__(self, model: nn.Module, config: LossConfig) -> None:
        super().__init__()
        self.model: Any = model
        self.options = vars(config)
        self.contributors: list[Any] = [m for m in model.modules() if hasattr(m, "losses")]

    def forward(self, inputs: dict[str, Tensor], targets: Tensor, count: int) -> dict[str, Tensor]:
        """{name: sum over the targets}, which the caller divides by their number in the whole
        batch: the cross-entropy, and the losses() of modules of the network, which are means. In
        eval mode, plain cross-entropy alone."""
        hidden = self.model.hidden(**inputs)
        options = self.options if self.training else {}
        total, _ = loss(hidden, self.model.head, targets, count, **options)
        losses = {"loss": total}
        if self.training:
            for module in self.contributors:
                for name, mean in module.losses().items():
                    check_name(name)
                    losses[name] = losses.get(name, 0.0) + count * mean
        return losses


def check_name(name: str) -> None:
    if name in COLUMNS or name.startswith("val_"):
        raise ValueError(f"a loss or metric has the name {name!r}, which is taken; rename it")


def without_traces(module: nn.Module) -> AbstractContextManager[None]:
    """Forward passes within it begin with the buffers of now, and whatever they change of the
    attributes and buffers of modules is as before afterwards."""
    copies = [
        {name: buffer.clone() for name, buffer in part.named_buffers(recurse=False)}
        for part in module.modules()
    ]

    @contextmanager
    def within() -> Iterator[None]:
        before = [(part, {**vars(part)}, {**part._buffers}) for part in module.modules()]
        for (part, _, _), copied in zip(before, copies, strict=True):
            part._buffers.update(copied)
        try:
            yield
        finally:
            for part, attributes, buffers in before:
                vars(part).update(attributes)
                part._buffers.update(buffers)

    return within()


def recompute_blocks(model: nn.Module) -> None:
    """Blocks keep only their inputs for the backward pass, which runs them again."""
    blocks: list[Any] = blocks_of(model)
    for block in blocks:
        block.forward = recomputed(block, block.forward)


def recomputed(block: nn.Module, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The second pass reads the buffers, and what earlier layers share, as the first one found
    them."""

    def run(x: Tensor, context: AttentionContext, given: dict[str, Any]) -> Any:
        own = context._replace(shared=Shared(given))
        return forward(x, own), dict(own.shared)

    def forward_and_again(x: Tensor, context: AttentionContext, states: States = None) -> Tensor:
        if states is not None:  # in decoding
            return forward(x, context, states)
        options: Any = {"use_reentrant": False}
        if not torch.compiler.is_compiling():  # a graph leaves no traces
            options["context_fn"] = lambda: (nullcontext(), without_traces(block))
        y, shared = checkpoint(run, x, context, dict(context.shared), **options)
        context.shared.update(shared)
        return y

    return forward_and_again


def compile_module(module: nn.Module, config: Config, world: World) -> Any:
    """By torch.compile; compile=auto does so on a GPU, and what cannot be compiled runs eagerly."""
    is_optional = config.compile == "auto" and world.device.type == "cuda"
    if not (is_optional or config.compile is True):
        return module
    torch._dynamo.config.suppress_errors = is_optional
    # batches of pairs have different numbers of targets, which the loss cuts into chunks: it has a
    # graph for each number of chunks
    torch._dynamo.config.recompile_limit = 64
    blocks = list(blocks_of(module))
    if len(blocks) < MANY_BLOCKS:
        return torch.compile(module)
    for block in blocks:  # all of one kind share a graph, which is compiled once
        block.forward = compiled_in_training(block)
    return module


def compiled_in_training(block: nn.Module) -> Callable[..., Tensor]:
    """In eval mode it runs eagerly: texts of any length would be compiled anew."""
    eager = block.forward
    compiled = torch.compile(eager)

    def forward(*inputs: Any) -> Tensor:
        return compiled(*inputs) if block.training else eager(*inputs)

    return forward


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout is a function of (seed, step), so no random state has to be saved."""
    torch.manual_seed(int(hash_seed("step", seed, step, rank) >> 1))


def micro_batches(batch: Batch, size: int, device: torch.device) -> Iterator[tuple[Batch, bool]]:
    """(rows of the batch, whether they are the last). They are cut and counted on the host."""
    n = len(batch.targets)
    for start in range(0, n, size):
        rows = batch.rows(start, start + size) if size < n else batch
        yield rows.to(device), start + size >= n


def fit_micro_batch(run: Run) -> int:
    """The rows of a micro-batch: on a GPU all of them, or a half, or a quarter, until a forward and
    a backward pass fit in memory in every process. No weight changes. A resumed run keeps its
    own."""
    config = run.config
    world = run.world
    rows = config.train.batch_size // world.size
    size = config.train.micro_batch_size
    if isinstance(size, int):
        return min(size, rows)
    if world.device.type != "cuda":
        return max(1, min(rows, CPU_TOKENS // config.model.context_length))
    if run.state.micro_batch_size:
        return min(run.state.micro_batch_size, rows)
    # of pairs, the widest batch of the first sorted group; one of a later group may be a bit wider
    loader = run.data.train
    widest_step = max(range(SORT_GROUP), key=loader.seq_len)
    widest = loader.batch(widest_step).share(*world.share)
    while world.sum(runs_out_of_memory(run.loss_module, widest.rows(0, rows), world)).any():
        if rows == 1:
            hint = "lower size= or model.context_length"
            raise MemoryError(f"not even one row of a batch fits on the GPU; {hint}")
        smaller = math.ceil(rows / 2)
        if world.parallel == "fsdp":  # after a backward pass that failed, it cannot run another
            hint = f"set train.micro_batch_size={smaller}"
            raise MemoryError(f"micro-batches of {rows} do not fit on the GPU; {hint}")
        rows = smaller
        if world.is_main:
            warn(f"out of memory; trying micro-batches of {rows}")
    return rows


def runs_out_of_memory(module: nn.Module, rows: Batch, world: World) -> bool:
    try:
        with world.precision.autocast():
            losses = module(*rows.to(world.device))
        sum(losses.values()).backward()
    except torch.OutOfMemoryError:
        return True
    finally:
        module.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return False
