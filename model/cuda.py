"""Code that is faster on a CUDA GPU. Without it everything works, only more slowly; `python -m
tests.benchmarks.gpu --only choices` measures what it gains."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; importing its class would take time


def has_grouped_mm(weight: Tensor) -> bool:
    """Whether F.grouped_mm is one kernel for all these matrices. It is in bf16 on Hopper, and with
    torch 2.13 on a B200, if rows are a multiple of 16 bytes; elsewhere it waits for the host."""
    if not weight.is_cuda or weight.dtype is not torch.bfloat16:
        return False

    major = torch.cuda.get_device_properties(weight.device).major
    has_kernel = major == 9 or (major == 10 and torch.__version__ >= "2.13")
    return has_kernel and all(width % 8 == 0 for width in weight.shape[1:])


def joins_maps() -> bool:
    """Whether queries, keys and values are one matmul: in training; not yet measured."""
    return torch.is_grad_enabled()


def prefers_matmuls_on_cuda(q_BHTD: Tensor, bias: Tensor | None) -> bool:
    """Whether explicit matmuls beat the fused kernel. They may for one query under a mask, as in
    decoding: the kernel that takes a mask does not split the keys, and leaves most of the GPU idle;
    not yet measured."""
    return q_BHTD.shape[-2] == 1 and bias is not None


def attention_kernels(bias: Tensor | None) -> AbstractContextManager:
    """A context in which torch chooses among suitable kernels. cuDNN is a third faster than flash
    attention on an H200. It plans for each shape, so it is not used for decoding, where each token
    has another, nor with masks, where it has errors."""
    if bias is not None or not torch.is_grad_enabled():
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    others = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *others])


def takes_groups(q_BHTD: Tensor, bias: Tensor | None) -> bool:
    """Whether a fused kernel accepts fewer key/value heads than query heads. In torch 2.11 to 2.13
    only flash attention does, in 16 bits, without a mask, on Ampere or newer."""
    if not q_BHTD.is_cuda:
        return True
    is_half = q_BHTD.dtype.itemsize == 2 or torch.is_autocast_enabled("cuda")
    return is_half and bias is None and torch.cuda.get_device_capability(q_BHTD.device) >= (8, 0)
