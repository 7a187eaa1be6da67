"""Rope scaling: how a rotation learned on short texts is stretched over longer ones.

Each kind maps the rates of the pairs (radians per position) to new rates, and says by what factor the turned
queries and keys grow, which sharpens the softmax.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn as nn

from configs.registry import Bounds, Count, Positive, build


class NoScaling:
    def __call__(self, rate, base):
        return rate, 1.0


@dataclass
class ScaledRope:
    factor: Annotated[float, Bounds(least=1)]


class Linear(ScaledRope):
    """Every position counts as a fraction of itself (arxiv.org/abs/2306.15595)."""

    def __call__(self, rate, base):
        return rate / self.factor, 1.0


@dataclass
class Llama3(ScaledRope):
    """Pairs that turn often within the original context are kept, those that turn seldom stretched, the rest
    blended (arxiv.org/abs/2407.21783)."""

    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position: Count

    def __post_init__(self):
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"low_freq_factor ({self.low_freq_factor}) must be below "
                f"high_freq_factor ({self.high_freq_factor})"
            )

    def __call__(self, rate, base):
        turns = self.original_max_position * rate / (2 * math.pi)
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.lerp(rate / self.factor, rate, keep.clamp(0, 1)), 1.0


@dataclass
class Yarn(ScaledRope):
    """Pairs that turn more than beta_fast times within the original context are kept, fewer than beta_slow
    times stretched, and a ramp over the pairs' numbers leads from one to the other
    (arxiv.org/abs/2309.00071)."""

    original_max_position: Count
    beta_fast: Positive
    beta_slow: Positive
    attention_factor: Positive | None = None  # 0.1 ln(factor) + 1, as the paper fits it

    def __post_init__(self):
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
        return pairs * math.log(self.original_max_position / (times * 2 * math.pi)) / math.log(base)


SCALINGS = {"none": NoScaling, "linear": Linear, "llama3": Llama3, "yarn": Yarn}


class Position(nn.Module):
    """No position at all, and the three hooks: each scheme overrides exactly one."""

    max_positions = None  # the number of positions there are, where a scheme has only so many

    def __init__(self):  # kind none has no options, and nn.Module's own signature would take any
        super().__init__()

    def embed(self, x, pos):
        """Add to the token embeddings."""
        return x

    def rotary(self, x, pos):
        """A function that turns queries and keys standing at these positions, or None."""
        return None

    def bias(self, q_pos, k_pos):
        """Add to the attention scores, (1|B, H, T, S), or None."""
        return None


class LearnedPosition(Position):
    """One free vector per position."""

    def __init__(self, context_length: int, d_model: int):
        super().__init__()
        self.max_positions = context_length
        self.table = nn.Embedding(context_length, d_model)

    def embed(self, x, pos):
        return x + self.table(pos.clamp(min=0))  # left padding stands before 0


def inv_frequencies(width, base, x):
    """base^(-2i/width) for each pair i, on x's device; never less exact than float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return base ** (-torch.arange(0, width, 2, device=x.device, dtype=dtype) / width)


class Sinusoidal(Position):
    """Sines and cosines of many wavelengths (arxiv.org/abs/1706.03762, section 3.5)."""

    def __init__(self, d_model: int, base: Annotated[float, Bounds(above=1)] = 10000.0):
        super().__init__()
        if d_model % 2:
            raise ValueError(f"sinusoidal pairs a sine with a cosine, so d_model ({d_model}) must be even")
        self.d_model, self.base = d_model, base

    def embed(self, x, pos):
        angle = pos[..., None] * inv_frequencies(self.d_model, self.base, x)
        wave_BTC = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).type_as(x)
        return x + wave_BTC


class Rope(Position):
    """Turns each pair of channels of queries and keys, i and i + width/2, by an angle proportional to the
    position: a score then depends on the distance alone (arxiv.org/abs/2104.09864)."""

    def __init__(
        self,
        rotary_dim: int,
        rope_theta: Annotated[float, Bounds(above=1)] = 10000.0,
        rotary_fraction: Positive = 1.0,
        scaling: dict | None = None,
    ):
        super().__init__()
        self.rope_theta, self.width = rope_theta, int(rotary_dim * rotary_fraction)
        if self.width % 2 or not 0 < self.width <= rotary_dim:
            raise ValueError(
                f"rope turns pairs of channels, so the width it turns must be even and within the head's; "
                f"rotary_fraction ({rotary_fraction}) of {rotary_dim} is {self.width}"
            )
        self.scaling = build("scaling", SCALINGS, scaling or {"kind": "none"}, shared={})

    def rotary(self, x, pos):
        rate, growth = self.scaling(inv_frequencies(self.width, self.rope_theta, x), self.rope_theta)
        angle = pos[:, None, :, None] * rate
        cos, sin = angle.cos() * growth, angle.sin() * growth
        halves = [self.width // 2] * 2

        def rotate(heads):
            left, right, still = heads.split([*halves, heads.shape[-1] - self.width], -1)
            turned = torch.cat([left * cos - right * sin, right * cos + left * sin, still], -1)
            return turned.type_as(heads)

        return rotate


class Alibi(Position):
    """A penalty linear in the distance, steeper for some heads than for others (arxiv.org/abs/2108.12409)."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.n_heads = n_heads

    def bias(self, q_pos, k_pos):
        distance_B1TS = (q_pos[:, None, :, None] - k_pos[:, None, None, :]).abs()
        bias_BHTS = -self.slopes(q_pos.device)[:, None, None] * distance_B1TS
        return bias_BHTS

    def slopes(self, device):
        """2^(-8/n), 2^(-16/n), ...; a number of heads between powers of two takes every other one of the
        next."""
        power = 2 ** int(math.log2(self.n_heads))
        steps = torch.arange(1, power + 1, device=device) * 8 / power
        between = torch.arange(1, 1 + 2 * (self.n_heads - power), 2, device=device) * 4 / power
        return 2.0 ** -torch.cat([steps, between])


class Relative(Position):
    """One learned bias per head and bucket of distances, fine when near and coarse when far
    (arxiv.org/abs/1910.10683, section 2.1)."""

    def __init__(self, n_heads: int, causal: bool, num_buckets: int, max_distance: int):
        super().__init__()
        if num_buckets < 4 or num_buckets % 2 or max_distance <= num_buckets:
            raise ValueError(
                f"relative takes an even num_buckets from 4 on ({num_buckets}), and a larger max_distance "
                f"({max_distance})"
            )
        self.table = nn.Embedding(num_buckets, n_heads)
        self.causal, self.num_buckets, self.max_distance = causal, num_buckets, max_distance

    def bias(self, q_pos, k_pos):
        offset_BTS = k_pos[:, None, :] - q_pos[:, :, None]
        bias_BHTS = self.table(self.bucket(offset_BTS)).movedim(-1, 1)
        return bias_BHTS

    def bucket(self, offset):
        """Half of the buckets hold one distance each, the others grow up to max_distance. An encoder, which
        sees both sides, gives one half of all buckets to each."""
        buckets = self.num_buckets if self.causal else self.num_buckets // 2
        near = buckets // 2
        distance = (-offset).clamp(min=0) if self.causal else offset.abs()
        growth = (distance.clamp(min=near).float() / near).log() / math.log(self.max_distance / near)
        far = (near + (growth * (buckets - near)).long()).clamp(max=buckets - 1)
        ahead = 0 if self.causal else buckets * (offset > 0)
        return ahead + torch.where(distance < near, distance, far)


POSITIONS = {
    "none": Position,
    "learned": LearnedPosition,
    "sinusoidal": Sinusoidal,
    "rope": Rope,
    "alibi": Alibi,
    "relative": Relative,
}
