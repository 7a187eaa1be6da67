"""Batch: what one step trains on."""

from typing import NamedTuple

import torch

IGNORE = -100  # a position without a target


class Batch(NamedTuple):
    """The keywords of the model's forward, (B, T) each; the targets, (B, T); and how many there are."""

    inputs: dict[str, torch.Tensor]
    targets: torch.Tensor
    count: int

    def moved(self, move):
        return Batch({name: move(x) for name, x in self.inputs.items()}, move(self.targets), self.count)

    def to(self, device):
        return self.moved(lambda x: x.to(device, non_blocking=True))

    def pinned(self):
        return self.moved(torch.Tensor.pin_memory)

    def rows(self, start, stop):
        """Some of its rows: a micro-batch."""
        part = self.moved(lambda x: x[start:stop])
        return part._replace(count=int((part.targets != IGNORE).sum()))


def tensors(inputs, targets, count):
    return Batch({name: torch.from_numpy(x) for name, x in inputs.items()}, torch.from_numpy(targets), count)
