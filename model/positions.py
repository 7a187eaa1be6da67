"""Other position encodings than RoPE: added to the embeddings, or to the attention scores."""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from configs.registry import Bounds, Count
from model.embedding import make_table
from model.position import POSITIONS, Base, Position, inv_frequencies


class LearnedPosition(Position):
    """One learned vector per position."""

    def __init__(self, context_length: int, d_model: int):
        super().__init__()
        self.max_positions = context_length
        self.table = make_table(context_length, d_model)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table(pos.clamp(min=0))  # positions of left padding are negative


class Sinusoidal(Position):
    """Sines and cosines of many wavelengths (arxiv.org/abs/1706.03762, section 3.5): interleaved,
    or all sines in the first half of the channels."""

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


class Alibi(Position):
    """A penalty proportional to the distance, with a slope per head (arxiv.org/abs/2108.12409)."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.n_heads = n_heads

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        # 2^(-8/p), 2^(-16/p), ... for p heads, a power of two; the remaining heads have slopes
        # 1, 3, 5, ... of 2p heads
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
        """The bucket of an offset. Half of the buckets hold one distance each; the others grow
        logarithmically up to max_distance. If not causal, each direction has half of them."""
        buckets = self.num_buckets if self.causal else self.num_buckets // 2
        near = buckets // 2
        distance = (-offset).clamp(min=0) if self.causal else offset.abs()
        ratio = distance.clamp(min=near).float() / near
        growth = ratio.log() / math.log(self.max_distance / near)

        far = (near + (growth * (buckets - near)).long()).clamp(max=buckets - 1)
        ahead = 0 if self.causal else buckets * (offset > 0)
        return ahead + torch.where(distance < near, distance, far)


POSITIONS["learned"] = LearnedPosition
POSITIONS["sinusoidal"] = Sinusoidal
POSITIONS["alibi"] = Alibi
POSITIONS["relative"] = Relative
