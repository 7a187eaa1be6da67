"""KV cache: the keys and values of earlier tokens, one cache per layer."""

from typing import NamedTuple

import torch
from torch import Tensor


class KVCache:
    """Buffers of keys and values, or of MLA's latents. The first append allocates them.

    It grows with each append. Or, once `slot` is set, it is fixed: it stores one token at a time
    there, and returns whole buffers, in which a mask must hide the slots that are empty. All shapes
    and places then stay the same, as a CUDA graph needs.

    With a window it is a ring, in which the newest tokens replace the oldest: slot t is stored at
    place t % size. After slots 0 to 5, places 0 to 3 hold the slots 4, 5, 2, 3.
    """

    def __init__(self, size: int = 0, window: int | None = None):  # 0: as long as the first append
        self.is_ring = window is not None
        self.size = min(size, window or size)
        self.length = 0
        self.buffers: list[Tensor] = []
        self.slot: Tensor | None = None  # (1,), shared by all layers

    def append(self, *new: Tensor) -> list[Tensor]:
        """Store the new tensors, and return all that is stored."""
        if self.slot is not None:
            place = self.slot % self.size if self.is_ring else self.slot
            for buffer, tensor in zip(self.buffers, new, strict=True):
                buffer.index_copy_(-2, place, tensor)
            return self.buffers

        n_new = new[0].shape[-2]
        end = self.length + n_new
        if not self.buffers:
            self.size = self.size or end
            for tensor in new:
                *outer, _, width = tensor.shape
                self.buffers.append(tensor.new_zeros(*outer, self.size, width))

        start = self.length
        if end > self.size:
            if not self.is_ring:
                raise ValueError(f"the cache has room for {self.size} positions, not {end}")
            if n_new > 1:
                return self.append_several(end, new)
            start = start % self.size

        for buffer, tensor in zip(self.buffers, new, strict=True):
            buffer[..., start : start + n_new, :] = tensor
        self.length = end
        return self.read()

    def append_several(self, end: int, new: tuple[Tensor, ...]) -> list[Tensor]:
        """To a full ring. The first of them see tokens that the last ones replace."""
        both = [torch.cat(pair, -2) for pair in zip(self.read(), new, strict=True)]

        first = max(self.length, end - self.size)
        slots = torch.arange(first, end, device=new[0].device)
        for buffer, tensor in zip(self.buffers, new, strict=True):
            buffer[..., slots % self.size, :] = tensor[..., first - end :, :]
        self.length = end
        return both

    def slots(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The slots of n new tokens, and all that an append of them will return."""
        if self.slot is not None:
            places = torch.arange(self.size, device=device)
            stored = self.slots_at(places, self.slot) if self.is_ring else places
            return self.slot, stored

        slots = torch.arange(self.length + n, device=device)
        new = slots[self.length :]
        if not self.is_ring or len(slots) <= self.size:
            return new, slots
        places = slots[: self.size]
        if n == 1:
            return new, self.slots_at(places, self.length)
        old = self.slots_at(places[: self.length], self.length - 1)
        return new, torch.cat([old, new])

    def slots_at(self, places: Tensor, newest: Tensor | int) -> Tensor:
        """The slots that a ring stores there; a negative one is still empty."""
        return newest - (newest - places) % self.size

    def read(self) -> list[Tensor]:
        return [buffer[..., : self.length, :] for buffer in self.buffers]

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows with these indices, which may repeat."""
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def keep(self, start: int, end: int) -> None:
        """Slot `start` becomes slot 0, and so on up to `end`; all others are dropped."""
        self.length = end - start
        for buffer in self.buffers:
            buffer.copy_(buffer.roll(-start, -2))

    def overwrite_rows(self, rows: list[int], other: "KVCache") -> None:
        """Replace the newest slots of these rows, which were read again, by those of another
        cache."""
        for buffer, new in zip(self.buffers, other.read(), strict=True):
            places = torch.arange(new.shape[-2], device=new.device)
            # both end with the same token
            slots = other.slots_at(places, other.length - 1) + self.length - other.length
            changed = buffer[rows]
            changed[..., slots % self.size, :] = new
            buffer[rows] = changed


class LayerCache(NamedTuple):
    self_attn: KVCache  # grows with each decoded token
    cross_attn: KVCache  # keys and values of the memory, filled once
