"""Sampling: the scores of all words become the next word of each row."""

import math
import random
from typing import NamedTuple

import torch

from configs.registry import matches


class Sampling(NamedTuple):
    """temperature 0 takes the likeliest word; above it words are drawn, the more boldly the higher it is:
    from the top_k likeliest, from the likeliest that together have top_p of the probability, from those that
    have at least min_p of the likeliest one's. The scores of words that a row has already are divided by
    repetition_penalty (arxiv.org/abs/1909.05858, section 4.1)."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0


GREEDY = Sampling()
EXTREME = 1e30  # a penalty beyond it, or below its inverse, does the same to any score: float32 holds both


def check_sampling(sampling, words):
    """`words` is the size of the vocabulary."""
    temperature, top_k, seed = sampling.temperature, sampling.top_k, sampling.seed
    if not matches(temperature, float) or temperature < 0:
        raise ValueError(
            f"temperature is {temperature!r}; expected a number from 0 on, where 0 is the likeliest word"
        )
    if top_k is not None and not (matches(top_k, int) and 1 <= top_k <= words):
        raise ValueError(f"top_k is {top_k!r}; expected a whole number from 1 to {words}, the vocabulary")
    for name in ("top_p", "min_p"):
        share = getattr(sampling, name)
        if share is not None and not (matches(share, float) and 0 < share <= 1):
            raise ValueError(f"{name} is {share!r}; expected a number above 0 and up to 1")
    if not matches(sampling.repetition_penalty, float) or sampling.repetition_penalty <= 0:
        raise ValueError(
            f"repetition_penalty is {sampling.repetition_penalty!r}; expected a number above 0, "
            "where 1 changes nothing"
        )
    if not matches(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}; expected a whole number from 0 on")


def at_least_float32(scores_BV):
    """Sums over a vocabulary need at least float32."""
    return scores_BV.to(torch.promote_types(scores_BV.dtype, torch.float32))


def apply_repetition_penalty(scores_BV, written_BV, penalty):
    """A negative score is multiplied, so that it falls too."""
    penalty, largest = min(max(penalty, 1 / EXTREME), EXTREME), torch.finfo(scores_BV.dtype).max
    lower_BV = torch.where(scores_BV > 0, scores_BV / penalty, scores_BV * penalty)
    return torch.where(written_BV, lower_BV.clamp(-largest, largest), scores_BV)


def apply_temperature(scores_BV, temperature):
    """The likeliest word has 0, so that the coldest temperature leaves just that and no sum overflows."""
    limits = torch.finfo(scores_BV.dtype)
    return (scores_BV - scores_BV.amax(-1, keepdim=True)) / min(max(temperature, limits.tiny), limits.max)


def filter_logits(scores_BV, sampling):
    """Scores below what top_k, top_p and min_p ask for, in that order, become -inf; of equal scores all stay
    or none."""

    def at_least(least):
        return scores_BV.masked_fill(scores_BV < least, float("-inf"))

    top_p = math.inf if sampling.top_p in (None, 1) else sampling.top_p  # in float32 a sum may reach 1 early
    if sampling.top_k is not None or top_p < 1:
        ordered = scores_BV.topk(sampling.top_k or scores_BV.shape[-1]).values
        shares = ordered.softmax(-1)
        likelier = shares.cumsum(-1) - shares
        count = (likelier < top_p).sum(-1, keepdim=True).clamp(min=1)
        scores_BV = at_least(ordered.gather(-1, count - 1))
    if sampling.min_p is not None:
        scores_BV = at_least(scores_BV.amax(-1, keepdim=True) + math.log(sampling.min_p))
    return scores_BV


def uniform(seed, number, step):
    """A number from 0 to below 1 that nothing but these three decides."""
    return random.Random(f"{seed} {number} {step}").random()


def inverse_cdf(scores_BV, draws):
    """From each row the word in whose share of the whole its draw falls."""
    # in float64 a draw below 1 stays below the sum; not every device has it
    reached_BV = scores_BV.softmax(-1).to("cpu", torch.float64).cumsum(-1)
    aims_B1 = torch.tensor(draws, dtype=torch.float64)[:, None] * reached_BV[:, -1:]
    return torch.searchsorted(reached_BV, aims_B1, right=True)[:, 0].to(scores_BV.device)


def sample_next(logits_BV, written_BV, draws, sampling):
    """The next id of each row. written_BV: true for the words a row has already; None without a penalty."""
    scores_BV = logits_BV
    if written_BV is not None:
        scores_BV = apply_repetition_penalty(
            at_least_float32(scores_BV), written_BV, sampling.repetition_penalty
        )
    if sampling.temperature == 0:
        return scores_BV.max(-1).indices  # argmax takes two to four times as long on a CPU
    return inverse_cdf(
        filter_logits(apply_temperature(at_least_float32(scores_BV), sampling.temperature), sampling), draws
    )
