"""Filters: which tokens may be drawn, and the penalty for repeating some."""

import math
from typing import Any

import torch
from torch import Tensor


def penalize(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of seen tokens, and multiply negative ones, so that both fall."""
    lower_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, lower_BV, logits_BV)


def filter_logits(logits_BV: Tensor, sampling: Any) -> Tensor:
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
