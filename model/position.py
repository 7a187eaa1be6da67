"""Position encodings. Each overrides one hook of Position: it adds to the embeddings, rotates
queries and keys, or adds a bias to the attention scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from configs.registry import Bounds, Count, Positive, Registry, build
from model.embedding import make_table

Base = Annotated[float, Bounds(above=1)]
Factor = Annotated[float, Bounds(least=1)]
Rotate = Callable[[Tensor], Tensor]


class Position(nn.Module):
    """No position encoding, and the base of all others. pos is (1|B, T)."""

    max_positions: int | None = None  # the number of positions, if limited

    def __init__(self) -> None:  # nn.Module's own signature would accept any option
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """x, with what is added to the token embeddings."""
        return x

    def rotary(self, x: Tensor, pos: Tensor) -> Rotate | None:
        """A function that rotates the queries or keys at these positions, or None."""
        return None

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """What is added to the attention scores, (1|B, H, T, S), or None."""
        return None


class LearnedPosition(Position):
    """One learned vector per position."""

    def __init__(self, context_length: int, d_model: int):
        super().__init__()
        self.max_positions = context_length
        self.table = make_table(context_length, d_model)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table(pos.clamp(min=0))  # positions of left padding are negative


def inv_frequencies(width: int, base: float, x: Tensor) -> Tensor:
    """base^(-2i/width) for each pair i, on x's device, in at least float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    twice_i = torch.arange(0, width, 2, device=x.device, dtype=dtype)
    return base ** (-twice_i / width)


class Sinusoidal(Position):
    """Sines and cosines of many wavelengths (arxiv.org/abs/1706.03762, section 3.5): in turn, or
    all sines in the first half of the channels."""

    def __init__(
        self,
        d_model: int,
        base: Base = 1e4,
        layout: Literal["interleaved", "halves"] = "interleaved",
    ):
        super().__init__()
        if d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {d_model}")
        self.d_model = d_model
        self.base = base
        self.axis = -1 if layout == "interleaved" else -2

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        angle = pos[..., None] * inv_frequencies(self.d_model, self.base, x)
        waves = torch.stack([angle.sin(), angle.cos()], self.axis)
        wave_BTC = waves.flatten(-2).type_as(x)
        return x + wave_BTC


# RoPE scaling: (inv_freq, theta) -> new inv_freq. mscale is a factor on rotated queries and keys
@dataclass
class LinearScaling:
    """Position interpolation: divides every position by the factor (arxiv.org/abs/2306.15595)."""

    factor: Factor
    mscale = 1.0

    def __call__(self, inv_freq: Tensor, theta: float) -> Tensor:
        return inv_freq / self.factor


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
            """The fractional index of the pair that turns so often within the original context."""
            wavelength = self.original_max_position / turns
            return pairs * math.log(wavelength / (2 * math.pi)) / math.log(theta)

        low = max(math.floor(pair_with(self.beta_fast)), 0)
        high = min(math.ceil(pair_with(self.beta_slow)), 2 * pairs - 1)

        pair = torch.arange(pairs, device=inv_freq.device, dtype=inv_freq.dtype)
        ramp = (pair - low) / (high - low or 0.001)
        return torch.lerp(inv_freq, inv_freq / self.factor, ramp.clamp(0, 1))


SCALINGS = Registry(
    none=partial(LinearScaling, factor=1.0),
    linear=LinearScaling,
    llama3=Llama3Scaling,
    yarn=YarnScaling,
)


class Rope(Position):
    """Rotates pairs of query and key channels by an angle proportional to the position, so that a
    score depends only on the distance (arxiv.org/abs/2104.09864). Channels i and i + D/2 are a
    pair, where D counts the rotated channels, as in Hugging Face's Llama; the paper pairs 2i and
    2i + 1."""

    def __init__(
        self,
        rotary_dim: int,
        rope_theta: Base = 1e4,
        rotary_fraction: Annotated[float, Bounds(above=0, most=1)] = 1.0,
        scaling: dict | None = None,
    ):
        super().__init__()
        self.rope_theta = rope_theta
        self.width = int(rotary_dim * rotary_fraction)
        if self.width % 2 or self.width == 0:
            product = f"rotary_fraction ({rotary_fraction}) of {rotary_dim} is {self.width}"
            raise ValueError(f"{product} channels; rope needs an even number above 0")
        self.scaling = build("scaling", SCALINGS, scaling or {"kind": "none"}, shared={})

    def rotary(self, x: Tensor, pos: Tensor) -> Rotate:
        inv_freq = inv_frequencies(self.width, self.rope_theta, x)
        inv_freq = self.scaling(inv_freq, self.rope_theta)

        angle = pos[:, None, :, None] * inv_freq
        angle = torch.cat([-angle, angle], -1)  # of both channels of each pair
        cos = angle.cos() * self.scaling.mscale
        sin = angle.sin() * self.scaling.mscale

        def rotate(heads: Tensor) -> Tensor:
            # (a, b) becomes (a cos - b sin, b cos + a sin): roll swaps them, sin has the minus.
            # cast once and in few operations: at small widths each costs as much as a matmul
            paired, rest = heads.split([self.width, heads.shape[-1] - self.width], -1)
            paired = paired.to(cos.dtype)
            swapped = paired.roll(self.width // 2, -1)
            rotated = torch.addcmul(paired * cos, swapped, sin).type_as(heads)
            return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated

        return rotate


class Alibi(Position):
    """A penalty proportional to the distance, with a slope per head (arxiv.org/abs/2108.12409)."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.n_heads = n_heads

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        # 2^(-8/p), 2^(-16/p), ... for p heads, a power of two; heads that are left take the slopes
        # 1, 3, 5, ... of 2p
        power = 2 ** int(math.log2(self.n_heads))
        rest = self.n_heads - power
        steps = torch.arange(1, power + 1, device=q_pos.device) * 8 / power
        between = torch.arange(1, 1 + 2 * rest, 2, device=q_pos.device) * 4 / power
        slopes = 2.0 ** -torch.cat([steps, between])

        distance_B1TS = (q_pos[:, None, :, None] - k_pos[:, None, None, :]).abs()
        bias_BHTS = -slopes[:, None, None] * distance_B1TS
        return bias_BHTS


class Relative(Position):
    """T5's learned bias per head and distance bucket (arxiv.org/abs/1910.10683, section 2.1)."""

    def __init__(
        self,
        n_heads: int,
        causal: bool,
        num_buckets: Annotated[int, Bounds(least=4)],
        max_distance: Count,
    ):
        super().__init__()
        if num_buckets % 2 or max_distance <= num_buckets // 2:
            raise ValueError(
                f"num_buckets ({num_buckets}) must be even and < 2 max_distance ({max_distance})"
            )
        self.table = make_table(num_buckets, n_heads)
        self.causal = causal
        self.num_buckets = num_buckets
        self.max_distance = max_distance

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        offset_BTS = k_pos[:, None, :] - q_pos[:, :, None]
        bias_BHTS = self.table(self.bucket(offset_BTS)).movedim(-1, 1)
        return bias_BHTS.contiguous()  # fused kernels need it

    def bucket(self, offset: Tensor) -> Tensor:
        """Half of the buckets hold one distance each; the others grow logarithmically up to
        max_distance. Without causality, each direction has half of all buckets."""
        buckets = self.num_buckets if self.causal else self.num_buckets // 2
        near = buckets // 2
        distance = (-offset).clamp(min=0) if self.causal else offset.abs()
        ratio = distance.clamp(min=near).float() / near
        growth = ratio.log() / math.log(self.max_distance / near)

        far = (near + (growth * (buckets - near)).long()).clamp(max=buckets - 1)
        ahead = 0 if self.causal else buckets * (offset > 0)
        return ahead + torch.where(distance < near, distance, far)


POSITIONS = Registry(
    none=Position,
    learned=LearnedPosition,
    sinusoidal=Sinusoidal,
    rope=Rope,
    alibi=Alibi,
    relative=Relative,
)
