"""Precision: the device and the dtype of a run, chosen once, with the reason."""

import os
import re
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from model import cpu

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision(NamedTuple):
    """In training, weights and optimizer state stay in float32, and matmuls run in `dtype`."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def autocast(self) -> AbstractContextManager:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def choose_device(name: str) -> torch.device:
    if name != "auto":
        return named_device(name)
    found = torch.accelerator.current_accelerator(check_available=True)
    return found if found and found.type in ("cuda", "mps") else torch.device("cpu")


def named_device(name: str) -> torch.device:
    if not re.fullmatch(r"cpu|mps|cuda(:(0|[1-9]\d*))?", name):
        raise ValueError(
            f"device is {name!r}; choose one of: auto, cpu, cuda, mps, or a GPU such as cuda:1"
        )

    device = torch.device(name)
    n_devices = torch.get_device_module(device).device_count()
    if (device.index or 0) >= n_devices:
        raise ValueError(
            f"device={name}, but torch finds {n_devices} {device.type} devices, from 0 on"
        )

    if device.index is not None:
        torch.cuda.set_device(device)  # memory queries are about it, too
    return device


def use_deterministic_algorithms(on: bool) -> None:
    """Use only deterministic algorithms; an operation that has none raises. torch would then also
    fill new memory, which only costs time."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    torch.use_deterministic_algorithms(on)
    torch._inductor.config.deterministic = on  # no kernel is chosen by its time


def choose_precision(device: torch.device, precision: str) -> Precision:
    """The requested precision, or with auto the fastest one that is safe on this device."""
    if precision not in ("auto", *DTYPES):
        raise ValueError(f"precision is {precision!r}; choose one of: auto, {', '.join(DTYPES)}")
    if device.type == "cuda":
        return gpu_precision(device, precision)
    if precision != "auto":
        return Precision(device, DTYPES[precision], "as configured")
    feature = cpu.fast_bf16() if device.type == "cpu" else None
    if feature:
        return Precision(device, torch.bfloat16, f"CPU has native bf16 matmul ({feature})")
    return Precision(device, torch.float32, f"no faster dtype is safe on this {device.type}")


def gpu_precision(device: torch.device, precision: str) -> Precision:
    """The same on a GPU; sets torch's options for it."""
    torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32

    # cuDNN would plan attention again for each shape, so for each decoded token
    torch.backends.cuda.enable_cudnn_sdp(False)
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == "bf16" and not has_bf16:
        raise ValueError("this GPU has no native bf16 matmul; choose precision=fp16 or fp32")
    if precision != "auto":
        return Precision(device, DTYPES[precision], "as configured")
    if has_bf16:
        return Precision(device, torch.bfloat16, "GPU has native bf16 matmul")
    return Precision(device, torch.float16, "GPU lacks native bf16 matmul")
