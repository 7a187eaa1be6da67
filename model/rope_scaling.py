"""Rope scaling: how a rotation learned on short texts is stretched over longer ones.

Each kind maps the rates of the pairs (radians per position) to new rates, and says by what factor the turned
queries and keys grow, which sharpens the softmax.
"""

import math
from dataclasses import dataclass

import torch

from model.build import require_above


class Unscaled:
    def __call__(self, rate, base):
        return rate, 1.0


@dataclass
class Stretched:
    factor: float

    def __post_init__(self):
        require_above(0, **vars(self))
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, which stretches nothing, and is {self.factor}")


class Linear(Stretched):
    """Every position counts as a fraction of itself (arxiv.org/abs/2306.15595)."""

    def __call__(self, rate, base):
        return rate / self.factor, 1.0


@dataclass
class Llama3(Stretched):
    """Pairs that turn often within the original context are kept, those that turn seldom stretched, the rest
    blended (arxiv.org/abs/2407.21783)."""

    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self):
        super().__post_init__()
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"low_freq_factor ({self.low_freq_factor}) must be below "
                f"high_freq_factor ({self.high_freq_factor})"
            )

    def __call__(self, rate, base):
        turns = self.original_context * rate / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.lerp(rate / self.factor, rate, keep.clamp(0, 1)), 1.0


@dataclass
class Yarn(Stretched):
    """Pairs that turn more than beta_fast times within the original context are kept, fewer than beta_slow
    times stretched, and a ramp over the pairs' numbers leads from one to the other
    (arxiv.org/abs/2309.00071)."""

    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float | None = None  # 0.1 ln(factor) + 1, as the paper fits it

    def __post_init__(self):
        super().__post_init__()
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_slow ({self.beta_slow}) must be below beta_fast ({self.beta_fast})")

    def __call__(self, rate, base):
        pairs = len(rate)
        start = max(math.floor(self.pair_turning(self.beta_fast, base, pairs)), 0)
        end = min(math.ceil(self.pair_turning(self.beta_slow, base, pairs)), 2 * pairs - 1)
        pair = torch.arange(pairs, device=rate.device, dtype=rate.dtype)
        stretch = (pair - start) / max(end - start, 0.001)
        growth = self.attention_factor or 0.1 * math.log(self.factor) + 1
        return torch.lerp(rate, rate / self.factor, stretch.clamp(0, 1)), growth

    def pair_turning(self, times, base, pairs):
        """The number, with a fraction, of the pair that turns so many times within the original context."""
        return pairs * math.log(self.original_context / (times * 2 * math.pi)) / math.log(base)


SCALINGS = {"none": Unscaled, "linear": Linear, "llama3": Llama3, "yarn": Yarn}
