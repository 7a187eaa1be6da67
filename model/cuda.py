"""What is faster on a CUDA GPU than launching the kernels of a token one by one. Without what is
here everything works, only more slowly."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def can_replay(model: nn.Module) -> bool:
    """Whether decoding replays a CUDA graph, which belongs to one GPU and reads weights where they
    are: they must be frozen by model.requires_grad_(False), and experts must not wait for the
    host."""
    return all(
        p.is_cuda
        and p.get_device() == torch.cuda.current_device()
        and not p.requires_grad
        and (p.ndim < 3 or has_grouped_mm(p))
        for p in model.parameters()
    )


def has_grouped_mm(weight: Tensor) -> bool:
    """Whether F.grouped_mm is one kernel for all these matrices. In torch 2.11 to 2.15 it is so in
    bf16 on Hopper, for rows of a multiple of 16 bytes; elsewhere it waits for the host."""
    if not weight.is_cuda or weight.dtype is not torch.bfloat16:
        return False
    is_hopper = torch.cuda.get_device_properties(weight.device).major == 9
    return is_hopper and all(width % 8 == 0 for width in weight.shape[1:])


def takes_groups(q_BHTD: Tensor, bias: Tensor | None) -> bool:
    """Whether a fused kernel takes fewer heads of keys than of queries. In torch 2.11 to 2.13 only
    flash attention does, without a mask and from Ampere on."""
    if not q_BHTD.is_cuda:
        return True
    return bias is None and torch.cuda.get_device_capability(q_BHTD.device) >= (8, 0)


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


class HostCopy:
    """Values on their way to the host, which need not wait for a GPU until it reads them."""

    def __init__(self, values: Tensor):
        self.values = values.to("cpu", non_blocking=values.is_cuda, copy=True)
        self.arrived = torch.cuda.Event() if values.is_cuda else None
        if self.arrived is not None:
            self.arrived.record()

    def read(self) -> list[list[float]]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.values.tolist()
