"""A batch: the input of a training step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from numpy import ndarray
from torch import Tensor

from configs.schema import IGNORE_INDEX


@dataclass
class Batch:
    """Rows of a text, or padded pairs. The main loss of a step is the sum of all cross-entropies,
    each times its weight if there are weights, divided by the number of targets."""

    inputs: dict[str, Tensor]  # keyword arguments of the model's hidden()
    targets: Tensor  # (B, T)
    count: int  # of targets
    weights: Tensor | None = None  # (B, T)
    n_tokens: int = 0  # without padding; a part of a batch keeps the number of the whole
    source: str = ""  # of a mix, in an evaluation

    def __iter__(self) -> Iterator:
        """Yield the arguments of LossModule."""
        yield from (self.inputs, self.targets, self.count)
        if self.weights is not None:
            yield self.weights

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        inputs = {name: function(x) for name, x in self.inputs.items()}
        weights = None if self.weights is None else function(self.weights)
        return replace(self, inputs=inputs, targets=function(self.targets), weights=weights)

    def to(self, device: torch.device) -> "Batch":
        is_gpu = device.type == "cuda"  # elsewhere a copy may be read before it has arrived
        return self.map_tensors(lambda x: x.to(device, non_blocking=is_gpu))

    def rows(self, start: int, stop: int) -> "Batch":
        """Some of the rows: a micro-batch."""
        return self.map_tensors(lambda x: x[start:stop]).recount()

    def share(self, rank: int, size: int) -> "Batch":
        """The rows of one of `size` processes. All have equally many rows, because they must run
        equally many forward passes; a missing row is replaced by another one without targets."""
        n = len(self.targets)
        share = math.ceil(n / size)
        rows = torch.arange(rank * share, (rank + 1) * share)
        part = self.map_tensors(lambda x: x[rows % n])
        part.targets[rows >= n] = IGNORE_INDEX
        return part.recount()

    def recount(self) -> "Batch":
        return replace(self, count=int((self.targets != IGNORE_INDEX).sum()))


def make_batch(
    targets: ndarray | Tensor,
    weights: ndarray | Tensor | None = None,
    n_tokens: int = 0,
    **inputs: ndarray | Tensor,
) -> Batch:
    """Make a batch. n_tokens: those of its text, if its targets are padded or differ in length."""
    tensors = {name: torch.as_tensor(x) for name, x in inputs.items()}
    targets = torch.as_tensor(targets)

    if weights is not None:
        weights = torch.as_tensor(weights, dtype=torch.float32)
        if weights.shape != targets.shape:
            raise ValueError("the weights of a batch must have the shape of its targets")
    return Batch(tensors, targets, 0, weights, n_tokens or targets.numel()).recount()
