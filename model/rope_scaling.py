"""RoPE scaling: lower frequencies, for a longer context than in training. Each kind maps
(inv_freq, theta) to a new inv_freq; mscale is a factor on rotated queries and keys."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from configs.registry import Bounds, Count, Positive

Factor = Annotated[float, Bounds(least=1)]


@dataclass
class Llama3Scaling:
    """Keeps high frequencies, divides low ones by the factor (arxiv.org/abs/2407.21783)."""

    factor: Factor
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position: Count
    mscale = 1.0

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")

    def __call__(self, inv_freq: Tensor, theta: float) -> Tensor:
        turns = self.original_max_position * inv_freq / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.lerp(inv_freq / self.factor, inv_freq, keep.clamp(0, 1))


@dataclass
class YarnScaling:
    """Keeps pairs that turn more than beta_fast times within the original context, divides those
    that turn less than beta_slow times by the factor, with a linear ramp in between
    (arxiv.org/abs/2309.00071)."""

    factor: Factor
    original_max_position: Count
    beta_fast: Positive
    beta_slow: Positive
    attention_factor: Positive | None = None  # default: 0.1 ln(factor) + 1, as in the paper

    def __post_init__(self) -> None:
        if self.beta_fast <= self.beta_slow:
            raise ValueError("beta_slow must be below beta_fast")

    @property
    def mscale(self) -> float:
        return self.attention_factor or 0.1 * math.log(self.factor) + 1

    def __call__(self, inv_freq: Tensor, theta: float) -> Tensor:
        pairs = len(inv_freq)

        def pair_with(turns: float) -> float:
            """The fractional index of the pair that makes `turns` in the original context."""
            wavelength = self.original_max_position / turns
            return pairs * math.log(wavelength / (2 * math.pi)) / math.log(theta)

        low = max(math.floor(pair_with(self.beta_fast)), 0)
        high = min(math.ceil(pair_with(self.beta_slow)), 2 * pairs - 1)

        pair = torch.arange(pairs, device=inv_freq.device, dtype=inv_freq.dtype)
        ramp = (pair - low) / (high - low or 0.001)
        return torch.lerp(inv_freq, inv_freq / self.factor, ramp.clamp(0, 1))
