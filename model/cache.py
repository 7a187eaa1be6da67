"""KV cache: the keys and values of earlier tokens, one cache per layer."""

from typing import NamedTuple

import torch
from torch import Tensor


class KVCache:
    """Buffers of keys and values, or of MLA's latents. The first append allocates them.

    It grows with each append. Or, once `slot` is set, it is fixed: it stores one token at a time
    there, and returns whole buffers, in which a mask must hide the slots that are empty. All shapes
    and places then stay the same, as a CUDA graph needs.
    """

    def __init__(self, size: int = 0):  # 0: as long as the first append
        self.size = size
        self.length = 0
        self.buffers: list[Tensor] = []
        self.slot: Tensor | None = None  # (1,), shared by all layers

    def append(self, *new: Tensor) -> list[Tensor]:
        """Store the new tensors, and return all that is stored."""
        if self.slot is not None:
            for buffer, n in zip(self.buffers, new, strict=True):
                buffer.index_copy_(-2, self.slot, n)
            return self.buffers

        end = self.length + new[0].shape[-2]
        if not self.buffers:
            self.size = self.size or end
            self.buffers = [n.new_zeros(*n.shape[:-2], self.size, n.shape[-1]) for n in new]

        if end > self.size:
            raise ValueError(f"the cache has room for {self.size} positions, not {end}")
        for buffer, n in zip(self.buffers, new, strict=True):
            buffer[..., self.length : end, :] = n
        self.length = end
        return self.read()

    def slots(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The slots of n new tokens, and all that an append will return."""
        if self.slot is not None:
            return self.slot, torch.arange(self.size, device=device)
        slots = torch.arange(self.length + n, device=device)
        return slots[self.length :], slots

    def read(self) -> list[Tensor]:
        return [buffer[..., : self.length, :] for buffer in self.buffers]

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows with these indices, which may repeat."""
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def keep(self, start: int, end: int) -> None:
        """Move these positions to the front, and drop all others."""
        self.length = end - start
        for buffer in self.buffers:
            buffer[..., : self.length, :] = buffer[..., start:end, :].clone()

    def overwrite_rows(self, rows: Tensor, other: "KVCache") -> None:
        """Replace the newest positions of these rows by those of another cache."""
        for buffer, new in zip(self.buffers, other.read(), strict=True):
            buffer[rows, ..., self.length - other.length : self.length, :] = new


class LayerCache(NamedTuple):
    self_attn: KVCache  # grows with each decoded token
    cross_attn: KVCache  # keys and values of the memory, filled once
