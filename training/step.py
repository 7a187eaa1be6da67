"""One training step: forward and backward passes in micro-batches, gradient clipping, optimizer update."""

import math
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

from configs.errors import NonFiniteError
from data.loader import rank_slice
from data.shuffle import hash_seed
from model.block import blocks_of
from model.loss import loss
from training.distributed import waiting_for
from training.sharding import whole


class LossModule(nn.Module):
    """Maps a batch to its summed loss: the module that is compiled and wrapped for distributed training."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets, count):
        total, _ = loss(self.model.hidden(**inputs), self.model.head, targets, count)
        return total


def recompute_blocks(model):
    """Blocks keep only their inputs for the backward pass, which runs them again."""
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


class StepMetrics(NamedTuple):
    loss: float  # mean over the targets of the step
    grad_norm: float  # before clipping
    skipped: bool  # a gradient overflowed float16, so no weight changed
    flags: list[float]  # summed over the processes


def seed_step(seed, step, rank=0):
    """Dropout is a function of (seed, step), so no random state has to be saved."""
    torch.manual_seed(int(hash_seed("step", seed, step, rank) >> 1))


class TrainStep:
    """Updates the weights by one batch. train_module: the compiled loss module, if it is compiled."""

    def __init__(
        self,
        loss_module,
        optimizer,
        precision,
        dist,
        micro_batch_size,
        max_grad_norm,
        train_module=None,
    ):
        self.model, self.optimizer, self.scaler = loss_module.model, optimizer, precision.scaler()
        self.precision, self.dist = precision, dist
        self.micro_batch_size, self.max_grad_norm = micro_batch_size, max_grad_norm
        self.parameters = list(self.model.parameters())  # finding them takes 1 % of a small step
        self.loss_module = loss_module  # evaluates
        self.train_module = dist.wrap(loss_module if train_module is None else train_module)

    def __call__(self, batch, lr_factor, flags=list):
        """Update at lr_factor times the base learning rate. A NaN or infinity never reaches the weights.
        flags() is called after the backward pass."""
        scaler, several = self.scaler, self.dist.world_size > 1
        count = self.dist.all_reduce(self.constants([batch.count]))[0] if several else batch.count
        total = self.backward(batch, count)
        for optimizer in self.optimizer.optimizers:
            scaler.unscale_(optimizer)
        norm = whole(nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm or math.inf))
        total, norm, count, flags = self.read(total, norm, count, flags())
        overflow = scaler.is_enabled() and not math.isfinite(norm)  # such a step is skipped
        for name, number in (("loss", total), ("gradient", 0.0 if overflow else norm)):
            if not math.isfinite(number):
                raise NonFiniteError(f"the {name} is not finite ({number})")
        self.optimizer.step(lr_factor, scaler, overflow)
        return StepMetrics(total / count, norm, overflow, flags)

    @waiting_for("the loss of another process")
    def read(self, total, norm, count, flags):
        """The numbers of a step, total and flags summed over the processes: its only wait for a GPU."""
        if self.dist.world_size == 1:
            return *torch.stack([total.float(), norm.float()]).tolist(), count, flags
        summed = self.dist.all_reduce(torch.cat([total.double()[None], self.constants(flags)]))
        total, *flags, norm, count = torch.cat(
            [summed, torch.stack([norm.double(), count])]
        ).tolist()
        return total, norm, count, flags

    def constants(self, numbers):
        """A tensor of them; copying it from the host would wait for the GPU."""
        options = {"dtype": torch.float64, "device": self.precision.device}
        tensors = [torch.full((1,), float(number), **options) for number in numbers]
        return torch.cat([*tensors, torch.empty(0, **options)])

    @waiting_for("the gradients of another process")
    def backward(self, batch, count):
        """Accumulate the gradient of the mean over `count` targets, those of all processes."""
        total = torch.zeros((), device=self.precision.device)
        starts = range(0, len(batch.targets), self.micro_batch_size)
        for start in starts:
            rows = batch.rows(start, start + self.micro_batch_size) if len(starts) > 1 else batch
            rows = rows.to(
                self.precision.device
            )  # cut and counted on the host, which waits for no GPU
            with self.dist.no_sync(self.train_module) if start != starts[-1] else nullcontext():
                with self.precision.autocast():
                    part = self.train_module(*rows)
                # DDP averages gradients over the processes; the sum is needed
                self.scaler.scale(part * (self.dist.world_size / count)).backward()
            total += part.detach()
        return total

    @torch.no_grad()
    def evaluate(self, batches):
        """(mean loss, number of targets) over batches that are split among the processes, without dropout."""
        self.model.eval()
        total, count = 0.0, 0
        for part in chain.from_iterable(map(self.own_parts, batches)):
            with self.precision.autocast():
                total += self.loss_module(*part.to(self.precision.device)).item()
            count += part.count
        self.model.train()
        total, count = self.dist.all_reduce_sum(total, count, device=self.precision.device)
        return total / count, int(count)

    def own_parts(self, batch):
        """Micro-batches of the rows that are evaluated here, as many as in every other process."""
        n_rows, size = len(batch.targets), self.micro_batch_size
        rows = rank_slice(n_rows, *self.dist.share)
        for start in range(rows.start, rows.start + math.ceil(n_rows / self.dist.world_size), size):
            if start < rows.stop:
                yield batch.rows(start, min(start + size, rows.stop))
            else:
                yield batch.rows(0, 1).without_targets()
