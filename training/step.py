"""Step: what one update of the weights is made of."""

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn as nn

from configs.errors import NonFiniteError
from data.shuffle import hash_seed
from model.loss import loss
from model.precision import Precision
from training.distributed import Dist
from training.optimizer import Optimizer


class LossModule(nn.Module):
    """The small module that is wrapped, compiled and shared out: a batch, and the sum of its losses."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets, count):
        total, _ = loss(self.model.hidden(**inputs), self.model.head, targets, count)
        return total


class Way(NamedTuple):
    """How the steps of a run are taken: in which numbers, with whom, in portions of how many rows."""

    optimizer: Optimizer
    scaler: torch.amp.GradScaler
    precision: Precision
    dist: Dist
    micro_batch_size: int
    clip: float


class StepMetrics(NamedTuple):
    """What an update tells of itself: the mean loss of its targets, the norm of the gradient."""

    loss: float
    norm: float
    skipped: bool


def seed_step(seed, step, rank=0):
    """Dropout follows from (seed, step), so that nothing about it need be saved."""
    torch.manual_seed(int(hash_seed("step", seed, step, rank) >> 1))


def backward(asked, batch, count, way):
    """The gradient of the mean over `count` targets, those of all processes; micro-batch by micro-batch."""
    total = torch.zeros((), device=way.precision.device)
    starts = range(0, len(batch.targets), way.micro_batch_size)
    for start in starts:
        rows = batch.rows(start, start + way.micro_batch_size) if len(starts) > 1 else batch
        with way.dist.no_sync(asked) if start != starts[-1] else nullcontext():
            with way.precision.autocast():
                part = asked(rows.inputs, rows.targets, rows.count)
            # the exchange between processes is a mean, and what is wanted is a sum
            way.scaler.scale(part * (way.dist.world_size / count)).backward()
        total += part.detach()
    return total


def update(asked, batch, factor, way):
    """One step at `factor` times the peak rate. What is not finite never reaches the weights."""
    device, scaler = way.precision.device, way.scaler
    [count] = way.dist.all_reduce_sum(batch.count, device=device)
    total = backward(asked, batch, count, way)
    for part in way.optimizer.parts:
        scaler.unscale_(part)
    norm = nn.utils.clip_grad_norm_(asked.parameters(), way.clip or math.inf)
    total, norm = torch.stack([total.float(), norm.float()]).tolist()  # the one wait of a step
    [total] = way.dist.all_reduce_sum(total, device=device)
    overflow = scaler.is_enabled() and not math.isfinite(norm)  # such a step is left out
    for what, number in (("loss", total), ("gradient", 0.0 if overflow else norm)):
        if not math.isfinite(number):
            raise NonFiniteError(f"the {what} is not finite ({number})")
    way.optimizer.step(factor, scaler, overflow)
    return StepMetrics(total / count, norm, overflow)


@torch.no_grad()
def evaluate(asked, batches, precision, dist):
    """(mean loss, targets) over batches that all processes share, without dropout."""
    asked.eval()
    total, count = 0.0, 0
    for batch in batches:
        batch = batch.to(precision.device)
        with precision.autocast():
            total += asked(batch.inputs, batch.targets, batch.count).item()
        count += batch.count
    asked.train()
    total, count = dist.all_reduce_sum(total, count, device=precision.device)
    return total / count, int(count)
