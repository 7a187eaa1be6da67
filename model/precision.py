"""Precision: the device and the dtype of a run, chosen once, with the reason."""

import ctypes
import os
import platform
import re
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")
# CPU features with which bf16 matmuls beat float32: avx512_bf16 is twice as fast on AMD (measured on Zen 4),
# but half as fast on Intel (Emerald Rapids)
FAST_BF16 = {"GenuineIntel": {"amx_bf16"}, "AuthenticAMD": {"avx512_bf16"}, "": {"bf16", "svebf16"}}

# dense 16-bit FLOP/s of GPUs by words of their name, as published by the vendor
PEAKS = {"B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
         "A100": 312e12, "L40S": 362e12, "L40": 181e12, "A6000": 155e12, "4090": 165e12, "3090": 71e12,
         "A10": 125e12, "L4": 121e12, "V100": 125e12, "T4": 65e12}  # fmt: skip


class Precision(NamedTuple):
    """Weights and optimizer state stay in float32; matmuls run in `dtype`."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def autocast(self):
        return (
            nullcontext()
            if self.dtype == torch.float32
            else torch.autocast(self.device.type, self.dtype)
        )

    def scaler(self):
        """Small gradients would underflow in float16."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    @property
    def n_threads(self):
        return torch.get_num_threads() if self.device.type == "cpu" else 1

    def peak_flops(self):
        """The device's peak FLOP/s, if known."""
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return None
        return peak_of(torch.cuda.get_device_name(self.device))


def choose_device(name):
    number = re.fullmatch(r"cuda:(0|[1-9][0-9]*)", name)
    kind = "cuda" if number else name
    if kind not in DEVICES:
        raise ValueError(
            f"device is {name!r}; choose one of: {', '.join(DEVICES)}, or a GPU such as cuda:1"
        )
    if kind == "auto":
        device = torch.accelerator.current_accelerator(check_available=True)
        return device if device and device.type in DEVICES else torch.device("cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device=cuda, but there is no GPU that torch can use; choose device=auto or cpu"
        )
    if number and int(number[1]) >= (count := torch.cuda.device_count()):
        raise ValueError(f"device={name}, but there are {count} GPUs; the first is cuda:0")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device=mps, but MPS is not available; choose device=auto or cpu")
    return torch.device(name)


def tune_malloc():
    """Keep freed memory in the process: by default glibc returns it and requests it again at every step,
    which costs 5 % of a step on a CPU. Results do not change."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def use_deterministic_algorithms(on):
    """Warns of an operation that has none. Filling new memory, as torch then does, would only cost time."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS requires
        torch.utils.deterministic.fill_uninitialized_memory = False
    if on != torch.are_deterministic_algorithms_enabled():  # for the call imports torch._inductor
        torch.use_deterministic_algorithms(on, warn_only=True)


def choose_precision(device, precision):
    """The requested precision, or the fastest that is safe on this device."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32
    if precision in DTYPES:
        return Precision(device, DTYPES[precision], "as configured")
    if precision != "auto":
        raise ValueError(f"precision is {precision!r}; choose one of: auto, {', '.join(DTYPES)}")
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        dtype, verb = (torch.bfloat16, "has") if major >= 8 else (torch.float16, "lacks")
        return Precision(
            device, dtype, f"GPU {verb} native bf16 matmul (compute capability {major}.{minor})"
        )
    if device.type == "cpu" and (feature := fast_bf16(processor())):
        return Precision(device, torch.bfloat16, f"CPU has native bf16 matmul ({feature})")
    return Precision(device, torch.float32, f"no faster dtype is safe on this {device.type}")


def peak_of(name):
    return next((flops for words, flops in PEAKS.items() if re.search(rf"\b{words}\b", name)), None)


@cache
def processor():
    """The fields of the first CPU in /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def fast_bf16(processor):
    """The CPU feature that makes bf16 faster than float32, or None."""
    features = f"{processor.get('flags', '')} {processor.get('Features', '')}".split()
    return min(FAST_BF16.get(processor.get("vendor_id", ""), set()) & set(features), default=None)
