"""Sampling: the logits of a step become the next token of each row."""

import math
import random
from dataclasses import dataclass
from typing import Annotated, get_type_hints

import torch

from configs.registry import Bounds, Count, NonNegative, Positive, check_value

Probability = Annotated[float, Bounds(above=0, most=1)]
Seed = Annotated[int, Bounds(least=0)]
MAX_PENALTY = (
    1e30  # beyond it, or below its inverse, a penalty has the same effect; float32 holds both
)


@dataclass(frozen=True)
class Sampling:
    temperature: NonNegative = 0.0  # 0 is greedy
    top_k: Count | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None  # relative to the probability of the most likely token
    repetition_penalty: Positive = 1.0  # of CTRL, arxiv.org/abs/1909.05858, section 4.1
    seed: Seed = 0

    def __post_init__(self):
        for name, annotation in get_type_hints(Sampling, include_extras=True).items():
            object.__setattr__(self, name, check_value(name, getattr(self, name), annotation))


GREEDY = Sampling()


def at_least_float32(logits_BV):
    """Sums over a vocabulary need at least float32."""
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))


def apply_repetition_penalty(logits_BV, seen_BV, penalty):
    """Divides positive logits of seen tokens and multiplies negative ones, so that both fall."""
    logits_BV = at_least_float32(logits_BV)
    penalty, largest = (
        min(max(penalty, 1 / MAX_PENALTY), MAX_PENALTY),
        torch.finfo(logits_BV.dtype).max,
    )
    lower_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, lower_BV.clamp(-largest, largest), logits_BV)


def filter_logits(logits_BV, sampling):
    """Logits outside top_k, then top_p, then min_p become -inf; equal logits are kept or dropped together."""
    top_p = (
        math.inf if sampling.top_p in (None, 1) else sampling.top_p
    )  # a float32 sum may reach 1 early
    if sampling.top_k is not None or top_p < 1:
        ordered = logits_BV.topk(sampling.top_k or logits_BV.shape[-1]).values
        probs = ordered.softmax(-1)
        kept = (probs.cumsum(-1) - probs < top_p).sum(-1, keepdim=True).clamp(min=1)
        logits_BV = logits_BV.masked_fill(logits_BV < ordered.gather(-1, kept - 1), -math.inf)
    if sampling.min_p is not None:
        least_B1 = logits_BV.amax(-1, keepdim=True) + math.log(sampling.min_p)
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -math.inf)
    return logits_BV


def uniform(seed, row_id, step):
    """A number in [0, 1) that depends on nothing else."""
    return random.Random(f"{seed} {row_id} {step}").random()


def sample_next(logits_BV, seen_BV, uniforms, sampling):
    """The next id of each row. seen_BV marks the tokens a row has already, None without a penalty; `uniforms`
    is a number in [0, 1) for each row."""
    if seen_BV is not None:
        logits_BV = apply_repetition_penalty(logits_BV, seen_BV, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits_BV.max(-1).indices  # argmax takes two to four times as long on a CPU
    logits_BV = at_least_float32(logits_BV)
    limits = torch.finfo(logits_BV.dtype)
    logits_BV = logits_BV - logits_BV.amax(
        -1, keepdim=True
    )  # at most 0, so that no temperature overflows
    logits_BV = logits_BV / min(max(sampling.temperature, limits.tiny), limits.max)
    probs_BV = filter_logits(logits_BV, sampling).softmax(-1)
    # the inverse CDF in float64, where a draw below 1 stays below the sum; mps has no float64
    device = "cpu" if probs_BV.device.type == "mps" else probs_BV.device
    cdf_BV = probs_BV.to(device, torch.float64).cumsum(-1)
    uniforms_B = torch.tensor(uniforms, dtype=torch.float64).to(device, non_blocking=True)
    targets_B1 = uniforms_B[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, targets_B1, right=True)[:, 0].to(logits_BV.device)
