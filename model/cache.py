"""Caches: what decoding keeps of earlier tokens, so that a step computes only new ones."""

from typing import Any

import torch
from torch import Tensor


class Slots:
    """Where tokens are stored: the t-th token of each row, padding included, has slot t in every
    layer. On a GPU, replay.py may replace them by slots that do not grow."""

    def __init__(self, size: int):
        self.size = size
        self.length = 0  # slots that are in use
        self.new: Any = slice(0)  # those of the tokens that were read last

    def reserve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of the new tokens in x, (T,), and of all that they may read, with their own."""
        start = self.length
        end = start + x.shape[1]
        if end > self.size:
            raise ValueError(f"the cache has room for {self.size} positions, not {end}")

        self.length = end
        self.new = slice(start, end)
        slots = torch.arange(end, device=x.device)
        return slots[start:], slots

    def seen(self, window: int | None) -> slice:
        """The slots that a layer reads: with a window only the newest."""
        first = 0 if window is None else max(0, self.new.start + 1 - window)
        return slice(first, self.length)

    def move(self, length: int) -> None:
        self.length = length


class State:
    """What a part of a layer keeps of the tokens that it has read: tensors with a row for each row
    of the batch, such as a recurrent state or the last inputs of a convolution. A subclass that
    keeps something for each slot also overrides keep() and overwrite_rows()."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []

    def read(self, *start: Tensor) -> list[Tensor]:
        """What was written last, or `start` if nothing was."""
        return self.buffers or list(start)

    def write(self, *new: Tensor) -> None:
        """Replace the tensors in place, because a CUDA graph reads the same memory again."""
        if not self.buffers:
            self.buffers = [t.clone(memory_format=torch.contiguous_format) for t in new]
            return

        for buffer, tensor in zip(self.buffers, new, strict=True):
            buffer.copy_(tensor)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows with these indices, which may repeat."""
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def keep(self, start: int) -> None:
        """Drop the slots before `start`, and move the others so that it becomes slot 0: rows have
        outgrown the context (see generate/padding.py, which calls this and overwrite_rows)."""

    def overwrite_rows(self, rows: list[int], other: Any) -> None:
        """Copy these rows from another state, which has read them again, or has read nothing."""
        for i, buffer in enumerate(self.buffers):
            buffer[rows] = other.buffers[i] if other.buffers else 0.0


class KVCache(State):
    """The keys and values of all slots, or MLA's latents. The first append allocates them."""

    def __init__(self, slots: Slots, window: int | None = None):
        super().__init__()
        self.slots = slots
        self.window = window

    def append(self, *new: Tensor) -> list[Tensor]:
        """Store the tensors of new tokens, and return those of all slots that these may see. (In
        replay.py some are still empty, and a mask hides them.)"""
        if not self.buffers:
            for tensor in new:
                *outer, _, width = tensor.shape
                self.buffers.append(tensor.new_zeros(*outer, self.slots.size, width))

        for buffer, tensor in zip(self.buffers, new, strict=True):
            buffer[..., self.slots.new, :] = tensor  # reserved by the stack
        seen = self.slots.seen(self.window)
        return [buffer[..., seen, :] for buffer in self.buffers]

    def keep(self, start: int) -> None:
        for buffer in self.buffers:
            buffer.copy_(buffer.roll(-start, -2))

    def overwrite_rows(self, rows: list[int], other: "KVCache") -> None:
        """Copy all slots of the other cache, if it has any, to the newest slots of these rows."""
        end = self.slots.length
        newest = slice(end - other.slots.length, end)
        for buffer, new in zip(self.buffers, other.buffers, strict=False):
            buffer[rows, ..., newest, :] = new


class MemoryCache(State):
    """Keys and values of the memory in cross-attention, written once."""

    def select_rows(self, rows: Tensor) -> None:
        """All beams of a search share one memory, so only the number of rows matters."""
        if self.buffers and len(rows) != len(self.buffers[0]):
            super().select_rows(rows)

    def overwrite_rows(self, rows: list[int], other: State) -> None:
        """A row that is read again keeps its memory."""


class Caches:
    """The states of all layers, by the names of their parts, and the slots that they share."""

    def __init__(self, slots: Slots, layers: list[dict[str, State]]):
        self.slots = slots
        self.layers = layers
        self.states = [state for layer in layers for state in layer.values()]

    def select_rows(self, rows: Tensor) -> None:
        for state in self.states:
            state.select_rows(rows)

    def keep(self, start: int, end: int) -> None:
        self.slots.move(end - start)
        for state in self.states:
            state.keep(start)

    def overwrite_rows(self, rows: list[int], other: "Caches") -> None:
        for state, new in zip(self.states, other.states, strict=True):
            state.overwrite_rows(rows, new)
