"""Position: three places it can enter the network. It is always told outright: pos is (1|B, T), counted
from 0 at a row's first token that is not padding."""

import math

import torch
import torch.nn as nn

from model.build import build, require_above
from model.rope_scaling import SCALINGS


class Position(nn.Module):
    """No position at all, and the three hooks: each scheme overrides exactly one."""

    limit = None  # the number of positions there are, where a scheme has only so many

    def __init__(self):  # kind none has no options, and nn.Module's own signature would take any
        super().__init__()

    def embed(self, x, pos):
        """Add to the token embeddings."""
        return x

    def rotation(self, x, pos):
        """A function that turns queries and keys standing at these positions, or None."""
        return None

    def bias(self, q_pos, k_pos):
        """Add to the attention scores, (1|B, H, T, S), or None."""
        return None


class Learned(Position):
    """One free vector per position."""

    def __init__(self, context: int, d_model: int):
        super().__init__()
        self.limit = context
        self.table = nn.Embedding(context, d_model)

    def embed(self, x, pos):
        return x + self.table(pos.clamp(min=0))  # left padding stands before 0


def pair_rates(width, base, x):
    """base^(-2i/width) for each pair i, on x's device; never less exact than float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return base ** (-torch.arange(0, width, 2, device=x.device, dtype=dtype) / width)


class Sinusoidal(Position):
    """Sines and cosines of many wavelengths (arxiv.org/abs/1706.03762, section 3.5)."""

    def __init__(self, d_model: int, base: float = 10000.0):
        super().__init__()
        require_above(1, base=base)
        if d_model % 2:
            raise ValueError(f"sinusoidal pairs a sine with a cosine, so d_model ({d_model}) must be even")
        self.d_model, self.base = d_model, base

    def embed(self, x, pos):
        angle = pos[..., None] * pair_rates(self.d_model, self.base, x)
        wave_BTC = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).type_as(x)
        return x + wave_BTC


class Rope(Position):
    """Turns each pair of channels of queries and keys, i and i + width/2, by an angle proportional to the
    position: a score then depends on the distance alone (arxiv.org/abs/2104.09864)."""

    def __init__(
        self, rotary_width: int, base: float = 10000.0, fraction: float = 1.0, scaling: dict | None = None
    ):
        super().__init__()
        require_above(1, base=base)
        require_above(0, fraction=fraction)
        self.base, self.width = base, int(rotary_width * fraction)
        if self.width % 2 or not 0 < self.width <= rotary_width:
            raise ValueError(
                f"rope turns pairs of channels, so the width it turns must be even and within the head's; "
                f"fraction ({fraction}) of {rotary_width} is {self.width}"
            )
        self.scaling = build("scaling", SCALINGS, scaling or {"kind": "none"}, shared={})

    def rotation(self, x, pos):
        rate, growth = self.scaling(pair_rates(self.width, self.base, x), self.base)
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

    def __init__(self, n_heads: int, causal: bool, buckets: int, max_distance: int):
        super().__init__()
        if buckets < 4 or buckets % 2 or max_distance <= buckets:
            raise ValueError(
                f"relative takes an even number of buckets from 4 on ({buckets}), and a larger max_distance "
                f"({max_distance})"
            )
        self.table = nn.Embedding(buckets, n_heads)
        self.causal, self.buckets, self.max_distance = causal, buckets, max_distance

    def bias(self, q_pos, k_pos):
        offset_BTS = k_pos[:, None, :] - q_pos[:, :, None]
        bias_BHTS = self.table(self.bucket(offset_BTS)).movedim(-1, 1)
        return bias_BHTS

    def bucket(self, offset):
        """Half of the buckets hold one distance each, the others grow up to max_distance. An encoder, which
        sees both sides, gives one half of all buckets to each."""
        buckets = self.buckets if self.causal else self.buckets // 2
        near = buckets // 2
        distance = (-offset).clamp(min=0) if self.causal else offset.abs()
        growth = (distance.clamp(min=near).float() / near).log() / math.log(self.max_distance / near)
        far = (near + (growth * (buckets - near)).long()).clamp(max=buckets - 1)
        ahead = 0 if self.causal else buckets * (offset > 0)
        return ahead + torch.where(distance < near, distance, far)


POSITIONS = {
    "none": Position,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rope": Rope,
    "alibi": Alibi,
    "relative": Relative,
}
