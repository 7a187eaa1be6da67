"""Precision: the device of a run and the numbers it computes with, decided once, with the reason."""

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")
BF16_PRODUCTS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # what a processor calls them


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
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        raise ValueError(f"device is {name!r}; choose one of: {', '.join(DEVICES)}")
    if kind == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found and found.type in DEVICES else torch.device("cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda and there is no GPU that torch can use; choose device=auto or cpu")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device=mps and torch finds none here; choose device=auto or cpu")
    return torch.device(name)


def choose(device, precision):
    """The precision asked for, or the fastest that is safe on this device."""
    if precision != "auto":
        if precision not in DTYPES:
            raise ValueError(f"precision is {precision!r}; choose one of: auto, {', '.join(DTYPES)}")
        return Precision(device, DTYPES[precision], "as asked for")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:
            return Precision(device, torch.bfloat16, f"compute capability {major}.{minor} has bf16 products")
        return Precision(device, torch.float16, f"compute capability {major}.{minor} has no bf16 products")
    if device.type == "cpu" and (found := sorted(BF16_PRODUCTS & processor_features())):
        return Precision(device, torch.bfloat16, f"the processor has bf16 products ({found[0]})")
    return Precision(device, torch.float32, "nothing faster is safe on this device")


def processor_features():
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    lines = (line.partition(":") for line in text.splitlines())
    return {
        word for name, _, words in lines if name.strip() in ("flags", "Features") for word in words.split()
    }
