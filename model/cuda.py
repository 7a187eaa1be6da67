"""What is faster on a CUDA GPU than launching the kernels of a token one by one. Without this file
everything works, only more slowly."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


def can_replay(model: nn.Module) -> bool:
    """Whether decoding replays a CUDA graph, which belongs to one GPU and reads weights where they
    are: they must be frozen by model.requires_grad_(False)."""
    return all(
        p.is_cuda and p.get_device() == torch.cuda.current_device() and not p.requires_grad
        for p in model.parameters()
    )


def record(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step whose tensors keep their shapes and places, as one launch instead of hundreds. It must
    have run once, for libraries allocate at first. Its output is overwritten by the next call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = step()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


class HostCopy(NamedTuple):
    """Values on their way to the host."""

    values: Tensor
    arrived: torch.cuda.Event | None

    def read(self) -> list[list[float]]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.values.tolist()


def to_host(values: Tensor) -> HostCopy:
    """On CUDA the host need not wait until it reads them."""
    copied = values.to("cpu", non_blocking=values.is_cuda, copy=True)
    if not values.is_cuda:
        return HostCopy(copied, None)
    arrived = torch.cuda.Event()
    arrived.record()
    return HostCopy(copied, arrived)
