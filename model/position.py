"""Position encodings. Each overrides one method of Position: it adds to the embeddings, rotates
queries and keys, or adds a bias to the attention scores."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from configs.registry import Bounds, Registry, UpToOne, build
from model.attend import exact_dtype
from model.rope_scaling import Factor, Llama3Scaling

Base = Annotated[float, Bounds(above=1)]
Rotate = Callable[[Tensor], Tensor]


class Position(nn.Module):
    """No position encoding; the base of all others. pos is (1|B, T)."""

    max_positions: int | None = None  # the number of positions, if limited

    def __init__(self) -> None:  # nn.Module's own signature would accept any option
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Add the encoding to the token embeddings x, if any."""
        return x

    def rotary(self, x: Tensor, pos: Tensor) -> Rotate | None:
        """A function that rotates the queries or keys at these positions, or None."""
        return None

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """The bias that is added to the attention scores, (1|B, H, T, S), or None."""
        return None


class Rope(Position):
    """Rotates pairs of query and key channels by an angle proportional to the position, so that a
    score depends only on the distance (arxiv.org/abs/2104.09864). Channels i and i + D/2 are a
    pair, where D counts the rotated channels, as in Hugging Face's Llama; the paper pairs 2i and
    2i + 1. A pair (a, b) becomes (a cos - b sin, b cos + a sin)."""

    def __init__(
        self,
        rotary_dim: int,
        rope_theta: Base = 1e4,
        rotary_fraction: UpToOne = 1.0,
        scaling: dict | None = None,
    ):
        super().__init__()
        self.rope_theta = rope_theta
        self.width = int(rotary_dim * rotary_fraction)

        if self.width % 2 or not self.width:
            raise ValueError(
                f"rotary_fraction ({rotary_fraction}) of {rotary_dim} is {self.width} channels; "
                "rope needs an even number above 0 (or position=none)"
            )
        self.scaling = build("scaling", SCALINGS, scaling or {"kind": "none"})

    def rotary(self, x: Tensor, pos: Tensor) -> Rotate:
        inv_freq = inv_frequencies(self.width, self.rope_theta, x)
        inv_freq = self.scaling(inv_freq)

        angle = pos[:, None, :, None] * inv_freq
        # (a, b) becomes (a, b) (cos, cos) + (b, a) (-sin, sin); -sin and cos are those of -angle
        angle = torch.cat([-angle, angle], -1)
        cos = angle.cos()
        sin = angle.sin()

        def rotate(heads: Tensor) -> Tensor:
            # roll swaps a and b; the minus is in sin. One cast and few operations: at small widths
            # each costs as much as a matmul
            paired, rest = heads.split([self.width, heads.shape[-1] - self.width], -1)
            paired = paired.to(cos.dtype)
            swapped = paired.roll(self.width // 2, -1)
            rotated = torch.addcmul(paired * cos, swapped, sin).type_as(heads)
            return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated

        return rotate


def inv_frequencies(width: int, base: float, x: Tensor) -> Tensor:
    """base^(-2i/width) for each pair i, on x's device, in at least float32."""
    twice_i = torch.arange(0, width, 2, device=x.device, dtype=exact_dtype(x))
    return base ** (-twice_i / width)


@dataclass
class LinearScaling:
    """Position interpolation: divide every position by the factor (arxiv.org/abs/2306.15595)."""

    factor: Factor

    def __call__(self, inv_freq: Tensor) -> Tensor:
        return inv_freq / self.factor


SCALINGS = Registry(
    none=partial(LinearScaling, factor=1.0),
    linear=LinearScaling,
    llama3=Llama3Scaling,
)
POSITIONS = Registry(none=Position, rope=Rope)  # positions.py has the others
