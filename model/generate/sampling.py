"""Sampling: the logits of a step become the next token of each row."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.registry import LARGEST, Count, Fraction, Natural, NonNegative, Positive, UpToOne
from model.generate.filters import filter_logits, penalize


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
    uniforms_B: Tensor | None,
    sampling: Sampling,
) -> Tensor:
    """The next id of each row. seen_BV marks the tokens that a row already has, or is None without
    a penalty; uniforms_B are numbers in [0, 1), in float64, which greedy decoding does not use."""
    if seen_BV is not None:
        logits_BV = penalize(logits_BV, seen_BV, sampling.repetition_penalty)
    if sampling.temperature < COLDEST:
        return logits_BV.max(-1).indices  # argmax takes two to four times as long on a CPU

    logits_BV = logits_BV / sampling.temperature
    if (sampling.top_k, sampling.top_p, sampling.min_p) != (LARGEST, 1, 0):
        logits_BV = filter_logits(logits_BV, sampling)
    probs_BV = logits_BV.softmax(-1)

    assert uniforms_B is not None
    # the inverse CDF in float64, where a draw below 1 stays below the sum
    cdf_BV = probs_BV.to(uniforms_B).cumsum(-1)
    targets_B1 = uniforms_B[:, None] * cdf_BV[:, -1:]

    drawn_B1 = torch.searchsorted(cdf_BV, targets_B1, right=True)
    last = cdf_BV.shape[-1] - 1  # with NaN, an id beyond it is drawn
    drawn_B = drawn_B1[:, 0].clamp(max=last)
    return drawn_B.to(logits_BV.device)


def uniform(seed: int, row_id: int, step: int) -> float:
    """A number in [0, 1) that depends only on the arguments."""
    return random.Random(f"{seed} {row_id} {step}").random()
