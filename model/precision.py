"""Precision: the device of a run and the numbers it computes with, decided once, with the reason."""

import ctypes
import platform
import re
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h
DEVICES = ("auto", "cpu", "cuda", "mps")
NUMBERED = re.compile(r"cuda:(0|[1-9][0-9]*)")
# what a processor calls products in bfloat16 that are faster than those in float32: AMD's avx512_bf16 are
# twice as fast (measured on Zen 4), Intel's half as fast (Emerald Rapids), unless there is amx_bf16
BF16_PRODUCTS = {"GenuineIntel": {"amx_bf16"}, "AuthenticAMD": {"avx512_bf16"}, "": {"bf16", "svebf16"}}

# 16-bit products a second of a GPU whose name has this word, without sparsity, as its maker states them
PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A6000": 155e12,
         "4090": 165e12, "3090": 71e12, "A10": 125e12, "L4": 121e12, "V100": 125e12, "T4": 65e12}  # fmt: skip


class Precision(NamedTuple):
    """Weights and optimizer stay in float32; products are taken in `dtype`."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def autocast(self):
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def scaler(self):
        """Small gradients would vanish in float16: they are scaled up before and down after."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)


def choose_device(name):
    number = NUMBERED.fullmatch(name)
    kind = "cuda" if number else name
    if kind not in DEVICES:
        raise ValueError(f"device is {name!r}; choose one of: {', '.join(DEVICES)}, or a GPU such as cuda:1")
    if kind == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found and found.type in DEVICES else torch.device("cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda and there is no GPU that torch can use; choose device=auto or cpu")
    if number and int(number[1]) >= (count := torch.cuda.device_count()):
        raise ValueError(f"device={name} and there are {count} GPUs, of which the first is cuda:0")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device=mps and torch finds none here; choose device=auto or cpu")
    return torch.device(name)


def tune_malloc():
    """glibc gives freed memory back and asks for it again in every step; told to hold it, a step on a CPU
    takes a twentieth less time. Not a bit of any result depends on it."""
    if platform.libc_ver()[0] == "glibc":
        tell = ctypes.CDLL(None).mallopt
        tell(M_MMAP_THRESHOLD, 1 << 30)
        tell(M_TRIM_THRESHOLD, 2**31 - 1)


def choose_precision(device, precision):
    """The precision asked for, or the fastest that is safe on this device."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, where numbers stay float32
    if precision != "auto":
        if precision not in DTYPES:
            raise ValueError(f"precision is {precision!r}; choose one of: auto, {', '.join(DTYPES)}")
        return Precision(device, DTYPES[precision], "as asked for")
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return Precision(device, torch.bfloat16, f"compute capability {major}.{minor} has bf16 products")
        return Precision(device, torch.float16, f"compute capability {major}.{minor} has no bf16 products")
    if device.type == "cpu" and (found := fast_bf16(processor())):
        return Precision(device, torch.bfloat16, f"the processor has fast bf16 products ({found})")
    return Precision(device, torch.float32, "nothing faster is safe on this device")


def peak_flops(precision):
    """What the device could compute in a second, where that is known."""
    if precision.device.type != "cuda" or precision.dtype == torch.float32:
        return None
    name = torch.cuda.get_device_name(precision.device)
    return next((most for word, most in PEAKS.items() if word in name), None)


@cache
def processor():
    """{name: value} of the first processor, as Linux tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def fast_bf16(processor):
    """The feature that makes bfloat16 worth while, or None."""
    fast = BF16_PRODUCTS.get(processor.get("vendor_id", ""), set())
    features = (processor.get("flags", "") + " " + processor.get("Features", "")).split()
    return next(iter(sorted(fast & set(features))), None)
