"""Step: what one update of the weights is made of."""

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn as nn

from data.order import key
from model.loss import loss
from training.errors import NumbersError


class Asked(nn.Module):
    """The small module that is wrapped, compiled and shared out: a batch, and the sum of its losses."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets, count):
        total, _ = loss(self.model.hidden(**inputs), self.model.head, targets, count)
        return total


class Learned(NamedTuple):
    """What an update tells of itself: the mean loss of its targets, the norm of the gradient."""

    loss: float
    norm: float
    skipped: bool


def seed_step(seed, step, rank=0):
    """Dropout follows from (seed, step), so that nothing about it need be saved."""
    torch.manual_seed(int(key("step", seed, step, rank) >> 1))


def backward(asked, batch, count, micro_batch, precision, scaler, ranks):
    """The gradient of the mean over `count` targets, those of all processes; micro-batch by micro-batch."""
    total = torch.zeros((), device=precision.device)
    starts = range(0, len(batch.targets), micro_batch)
    for start in starts:
        rows = batch.rows(start, start + micro_batch) if len(starts) > 1 else batch
        with ranks.quiet(asked) if start != starts[-1] else nullcontext():
            with precision.autocast():
                part = asked(rows.inputs, rows.targets, rows.count)
            # the exchange between processes is a mean, and what is wanted is a sum
            scaler.scale(part * (ranks.world / count)).backward()
        total += part.detach()
    return total


def update(asked, batch, *, optimizer, scaler, factor, micro_batch, clip, precision, ranks):
    """One step. What is not finite never reaches the weights."""
    [count] = ranks.sum(batch.count, device=precision.device)
    total = backward(asked, batch, count, micro_batch, precision, scaler, ranks)
    for part in optimizer.parts:
        scaler.unscale_(part)
    norm = nn.utils.clip_grad_norm_(asked.parameters(), clip or math.inf)
    total, norm = torch.stack([total.float(), norm.float()]).tolist()  # the one wait of a step
    [total] = ranks.sum(total, device=precision.device)
    overflow = scaler.is_enabled() and not math.isfinite(norm)  # the scaler leaves such a step out
    for what, number in (("loss", total), ("gradient", 0.0 if overflow else norm)):
        if not math.isfinite(number):
            raise NumbersError(f"the {what} is not finite ({number})")
    optimizer.step(factor, scaler)
    return Learned(total / count, norm, overflow)


@torch.no_grad()
def evaluate(asked, batches, precision, ranks):
    """(mean loss, targets) over batches that all processes share, without dropout."""
    asked.eval()
    total, count = 0.0, 0
    for batch in batches:
        batch = batch.to(precision.device)
        with precision.autocast():
            total += asked(batch.inputs, batch.targets, batch.count).item()
        count += batch.count
    asked.train()
    total, count = ranks.sum(total, count, device=precision.device)
    return total / count, int(count)
