"""Profile: a few trial steps, rolled back, find the micro-batch and the cost of a step."""

import math
import re
import sys
import time
from contextlib import contextmanager
from inspect import unwrap
from statistics import median
from threading import Timer
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from configs.cli import print, warn
from configs.registry import build
from model.transformer import build_model
from training.distributed import Dist, is_main_rank
from training.optimizer import OPTIMIZERS
from training.sharding import local, shard
from training.step import LossModule, TrainStep, recompute_blocks, seed_step

MICRO_BATCH_TOKENS = 1 << 14  # tokens in a micro-batch on a CPU, at most
FILLED = (
    0.9  # of the memory of a GPU, at most: evaluation, communication and fragmentation need some
)
OUT_OF_MEMORY = re.compile("out of memory|ALLOC_FAILED", re.I)  # of torch, NCCL, cuBLAS and cuDNN
FIRST_STEPS = 128  # the widest batch of these is profiled


class StepCost(NamedTuple):  # of one process
    micro_batch_size: int
    flops: float
    optimizer_bytes: int
    activation_bytes: int  # kept for the backward pass of a micro-batch
    seconds: float
    peak_bytes: int | None  # allocated on a GPU, at most


class FlopCounter(TorchDispatchMode):
    """Counts the FLOPs of matrix products. torch's FlopCounterMode also counts the scores that a fused
    backward pass computes anew."""

    total = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output, name = operation(*args, **(kwargs or {})), operation.__name__
        if (
            "scaled_dot_product" in name
        ):  # the fused backward pass also computes the scores anew: not counted
            backward = "backward" in name
            q_BHTD, k_BGSD, v_BGSE = args[1:4] if backward else args[:3]
            scores, widths = (
                q_BHTD[..., 0].numel() * k_BGSD.shape[-2],
                q_BHTD.shape[-1] + v_BGSE.shape[-1],
            )
            self.total += (4 if backward else 2) * scores * widths
        elif count := flop_registry.get(operation.overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=output)
        return output


FlopCounter.__torch_dispatch__ = unwrap(
    FlopCounter.__torch_dispatch__
)  # whose wrapper imports torch._dynamo


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
def profile_step(config, dist, precision, loaders, model, stored=None):
    """(TrainStep, StepCost) after a few trial steps, which leave weights and optimizer as they were."""
    rows, device = config.train.batch_size // dist.world_size, precision.device
    widest = max(range(FIRST_STEPS), key=loaders.train.seq_len)
    batch = loaders.train.batch(widest, *dist.share)
    row = (
        batch.rows(0, 1).map_tensors(torch.clone).to(device)
    )  # a view would be counted with its whole batch
    seed_step(config.seed, 0)
    flops, activation_bytes = count_row(config, dist, precision, model, row)
    loss_module = LossModule(model)
    if config.train.recompute == "block":
        recompute_blocks(model)
    if dist.parallel == "fsdp":
        if precision.dtype is torch.float16:
            raise ValueError("parallel=fsdp does not support precision=fp16; choose bf16 or fp32")
        shard(loss_module, precision)
    optimizer = build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    weights = {name: local(tensor) for name, tensor in model.state_dict().items()}
    saved = {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()}
    # alone: a process that runs out of memory must not block the others
    trial = TrainStep(loss_module, optimizer, precision, Dist(), rows, config.train.grad_clip)
    n = find_micro_batch(config, dist, trial, batch, stored)
    micro_batch = batch.rows(0, n)
    if config.compile is True or (config.compile == "auto" and device.type == "cuda"):
        compile_step(trial, micro_batch)

    def seconds(function, *args):
        start = time.perf_counter()
        function(micro_batch, *args)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds(trial, 0.0)  # the first step is always slow
    # a step is an update after one micro-batch, and the backward passes of the others
    backward = seconds(trial.backward, micro_batch.count) if rows > n else 0
    update = median(seconds(trial, 0.0) for _ in range(5 if config.train.minutes else 1))
    peak_bytes = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    for name, tensor in weights.items():
        tensor.copy_(saved[name])
    optimizer.reset()
    optimizer_bytes = sum(tensor.nbytes for tensor in optimizer.expected_state().values())
    step_seconds = update + (rows // n - 1) * backward
    cost = StepCost(
        n, flops * rows, optimizer_bytes, activation_bytes * n, step_seconds, peak_bytes
    )
    train_module, max_grad_norm = trial.train_module, config.train.grad_clip
    return TrainStep(loss_module, optimizer, precision, dist, n, max_grad_norm, train_module), cost


def compile_step(trial, micro_batch):
    """Compiled with the rows of a step, so that sizes are static."""
    trial.train_module = torch.compile(trial.loss_module)
    try:
        trial.backward(micro_batch, micro_batch.count)
    except Exception as error:  # whatever a compiler raises, training works without it
        [reason] = (str(error).strip() or type(error).__name__).splitlines()[:1]
        warn(f"not compiled ({reason:.100})")
        trial.train_module = trial.loss_module


def count_row(config, dist, precision, model, row):
    """(FLOPs, activation bytes) of one row. What may fit only sharded, or only if blocks are recomputed, is
    counted on fake tensors, whose first operation takes a second."""
    if dist.parallel != "fsdp" and config.train.recompute == "none":
        return count_flops_and_activations(model, precision, row)
    with FakeTensorMode() as mode:
        fake = build_model(config.model, model.embedding.table.num_embeddings)
        row = row.map_tensors(lambda tensor: mode.from_tensor(tensor.cpu()))
        on_cpu = precision._replace(device=torch.device("cpu"))
        flops, activation_bytes = count_flops_and_activations(fake, on_cpu, row)
        if config.train.recompute == "block":
            recompute_blocks(fake)
            _, activation_bytes = count_flops_and_activations(fake, on_cpu, row)
    return flops, activation_bytes


def count_flops_and_activations(model, precision, row):
    """(FLOPs, bytes kept for the backward pass) of a batch of one row."""
    storages = {}

    def record(tensor):
        storages[tensor.untyped_storage()._cdata] = (
            tensor.untyped_storage()
        )  # held: none takes its place
        return tensor

    with FlopCounter() as counter:
        with (
            torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor),
            precision.autocast(),
        ):
            total = LossModule(model)(*row)
        total.backward()
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage()._cdata, None)
        parameter.grad = None
    return counter.total, sum(storage.nbytes() for storage in storages.values())


def find_micro_batch(config, dist, trial, batch, stored):
    """The configured size; on a CPU the largest within MICRO_BATCH_TOKENS; on a GPU the largest that fits."""
    size, device, rows = config.train.micro_batch_size, trial.precision.device, len(batch.targets)
    if size != "auto":
        return size
    sizes = divisors(rows)
    if stored and stored.state.micro_batch_size in sizes:
        return stored.state.micro_batch_size
    if device.type != "cuda":
        return next(
            n for n in sizes if n * config.model.context_length <= MICRO_BATCH_TOKENS or n == 1
        )
    free, _ = torch.cuda.mem_get_info()
    limit = FILLED * (free + torch.cuda.memory_reserved())
    if dist.parallel == "ddp":  # whose buckets come later
        limit -= sum(p.nbytes for p in trial.model.parameters())

    limit = -dist.all_reduce_max(-limit, device)  # of the process that has least

    def peak(n):  # of the process that needs most
        return dist.all_reduce_max(peak_memory(trial, batch, n), device)

    return largest_fitting(sizes, peak, limit)


def divisors(n):
    """Into how many rows each a batch of n can be split, the largest first."""
    return [size for size in range(n, 0, -1) if n % size == 0]


def largest_fitting(sizes, peak, limit):
    """The first of the descending sizes with peak(n) <= limit, from where peak(1) and peak(2) predict it."""
    fixed, per_row = peak(1), 0
    if fixed <= limit and len(sizes) > 1:
        per_row = peak(2) - fixed
    for n in sizes:
        if fixed + (n - 1) * per_row <= limit and (n == 1 or peak(n) <= limit):
            return n
    raise MemoryError(
        "not even one row of a batch fits on the GPU; lower size= or model.context_length"
    )


def peak_memory(trial, batch, n):
    """Bytes that steps with micro-batches of n rows need on a GPU; infinite if they run out of memory."""
    torch.cuda.reset_peak_memory_stats()
    try:
        for _ in range(2):  # the second step has the optimizer state in memory, too
            trial(batch.rows(0, n), 0.0)
        return torch.cuda.max_memory_allocated()
    except RuntimeError as error:
        if OUT_OF_MEMORY.search(str(error)):
            return math.inf
        raise
    finally:
        trial.optimizer.reset()
        torch.cuda.empty_cache()
