"""RoPE scaling: lower frequencies, for a longer context than in training. Each kind maps inv_freq
to a new one."""

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

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")

    def __call__(self, inv_freq: Tensor) -> Tensor:
        turns = self.original_max_position * inv_freq / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.lerp(inv_freq / self.factor, inv_freq, keep.clamp(0, 1))
