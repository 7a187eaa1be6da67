"""What is faster on a CUDA GPU. Without what is here everything works, only more slowly."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

# ways of which a GPU has to show the faster one. Until then they are chosen by reading; what
# `python -m tests.benchmarks.gpu --only choices` finds belongs here
CHOICES = {
    # attention of a training step by cuDNN, where there is no mask. It plans for each shape
    "cudnn_attention": False,
    # queries, keys and values of a training step as one matmul
    "joined_maps": True,
    # attention of one query under a mask, as in decoding, by matmuls. The fused kernel that takes a
    # mask does not split the keys, and leaves most of a GPU idle
    "explicit_decoding": True,
}


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor, whose class is not imported without need


def can_replay(model: nn.Module) -> bool:
    """Whether decoding replays a CUDA graph, which belongs to one GPU and reads weights where they
    are: no weight may be sharded, and experts must not wait for the host."""
    return all(
        p.is_cuda
        and p.get_device() == torch.cuda.current_device()
        and not is_sharded(p)
        and (p.ndim < 3 or has_grouped_mm(p))
        for p in model.parameters()
    )


def has_grouped_mm(weight: Tensor) -> bool:
    """Whether F.grouped_mm is one kernel for all these matrices. It is so in bf16 on Hopper, and
    with torch 2.13 on a B200, for rows of a multiple of 16 bytes; elsewhere it waits for the
    host."""
    if not weight.is_cuda or weight.dtype is not torch.bfloat16:
        return False
    major = torch.cuda.get_device_properties(weight.device).major
    has_kernel = major == 9 or (major == 10 and torch.__version__ >= "2.13")
    return has_kernel and all(width % 8 == 0 for width in weight.shape[1:])


def joins_maps(x: Tensor) -> bool:
    return CHOICES["joined_maps"] and x.is_cuda and torch.is_grad_enabled()


def prefers_matmuls(q_BHTD: Tensor, bias: Tensor | None) -> bool:
    is_masked_query = q_BHTD.is_cuda and q_BHTD.shape[-2] == 1 and bias is not None
    return CHOICES["explicit_decoding"] and is_masked_query


def attention_kernels(bias: Tensor | None) -> AbstractContextManager:
    """Within it, torch chooses among the kernels that suit. cuDNN has none for decoding, where each
    token has another shape, and errors with masks."""
    if not CHOICES["cudnn_attention"] or bias is not None or not torch.is_grad_enabled():
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    others = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *others])


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
        self.wait: Callable[[], None] = lambda: None
        if values.is_cuda:
            self.wait = torch.cuda.current_stream().record_event().synchronize

    def read(self) -> list[list[float]]:
        self.wait()
        return self.values.tolist()
