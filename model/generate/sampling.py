"""Sampling: the logits of a step become the next token of each row."""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.registry import LARGEST, Count, Fraction, Natural, NonNegative, Positive, UpToOne


@dataclass(frozen=True)
class Sampling:
    temperature: NonNegative = 0.0  # 0 is greedy
    top_k: Count = LARGEST
    top_p: UpToOne = 1.0
    min_p: Fraction = 0.0  # relative to the probability of the most likely token
    repetition_penalty: Positive = 1.0  # of CTRL, arxiv.org/abs/1909.05858, section 4.1
    seed: Natural = 0


GREEDY = Sampling()
COLDEST = 1e-6  # lower temperatures are greedy, too, because they may overflow


def sample_next(
    logits_BV: Tensor,
    seen_BV: Tensor | None,
    uniforms_B: Tensor,
    sampling: Sampling,
) -> Tensor:
    """The next id of each row. seen_BV marks the tokens that a row already has, or is None without
    a penalty; uniforms_B are numbers in [0, 1), in float64, which greedy decoding does not use."""
    if seen_BV is not None:
        # the penalty divides positive logits and multiplies negative ones, so that both fall
        penalty = sampling.repetition_penalty
        lower_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
        logits_BV = torch.where(seen_BV, lower_BV, logits_BV)

    if sampling.temperature < COLDEST:
        return logits_BV.max(-1).indices  # argmax takes two to four times as long on a CPU

    filtered_BV = filter_logits(logits_BV / sampling.temperature, sampling)
    probs_BV = filtered_BV.softmax(-1)

    # the inverse CDF in float64, where a draw below 1 stays below the sum
    cdf_BV = probs_BV.to(uniforms_B).cumsum(-1)
    targets_B1 = uniforms_B[:, None] * cdf_BV[:, -1:]

    drawn_B1 = torch.searchsorted(cdf_BV, targets_B1, right=True)
    last = cdf_BV.shape[-1] - 1  # with NaN, an id beyond it is drawn
    drawn_B = drawn_B1[:, 0].clamp(max=last)
    return drawn_B.to(logits_BV.device)


def filter_logits(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Set logits outside top_k, then top_p, then min_p to -inf; equal logits are kept or dropped
    together."""
    vocab_size = logits_BV.shape[-1]
    top_k = min(sampling.top_k, vocab_size)
    # with a top_p of 1 no token is dropped, though a float32 sum may reach 1 early
    top_p = math.inf if sampling.top_p == 1 else sampling.top_p

    if top_k < vocab_size or top_p < 1:
        ordered = logits_BV.topk(top_k).values
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs  # of more likely tokens
        least_B1 = ordered.masked_fill(before >= top_p, math.inf).amin(-1, keepdim=True)
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -math.inf)

    if sampling.min_p > 0:
        least_B1 = logits_BV.amax(-1, keepdim=True) + math.log(sampling.min_p)
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -math.inf)
    return logits_BV


def uniform(seed: int, row_id: int, step: int) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    return random.Random(f"{seed} {row_id} {step}").random()
