"""Where other code is faster on a CPU than torch's own, with gains measured on an AMD EPYC. Results
are the same up to rounding; without it everything works, only more slowly."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

# features with which bf16 matmuls beat float32, and a word in /proc/cpuinfo of such CPUs:
# avx512_bf16 is twice as fast on AMD (measured on Zen 4), half as fast on Intel (Emerald Rapids)
FAST_BF16 = {
    "amx_bf16": "GenuineIntel",
    "avx512_bf16": "AuthenticAMD",
    "bf16": "Features",  # as ARM calls them
    "svebf16": "Features",
}


def prefers_matmuls_on_cpu(q_BHTD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor) -> bool:
    """Whether explicit matmuls beat the fused kernel. They do up to 512 tokens: a step takes a
    quarter less time, and that of a small GPT-2 40 % less; but not in full float32, torch's
    default, which nothing here changes on a CPU."""
    if not q_BHTD.is_cpu:
        return False
    if k_BGSD.shape[-1] != v_BGSE.shape[-1]:  # the fused kernel needs one width
        return True
    if q_BHTD.shape[-2] * k_BGSD.shape[-2] > 512 * 512:
        return False
    if q_BHTD.dtype != torch.float32 or torch.compiler.is_compiling():
        return True
    return torch.get_float32_matmul_precision() != "highest"


def float32_wins(q_BHTD: Tensor, k_BGSD: Tensor) -> bool:
    """Whether copies in float32 make 16-bit attention faster. They do for a single query, as in
    decoding, while they fit in a core's cache: a token of a small model then takes 0.87 to 0.92
    of the time, in batches of 1 and 4."""
    is_single = q_BHTD.is_cpu and q_BHTD.shape[-2] == 1
    return is_single and q_BHTD.dtype.itemsize == 2 and k_BGSD.numel() <= 2**18


def use_cpu_kernels(values: Tensor) -> bool:
    """Whether functions written for a CPU replace torch's: in eager training."""
    return values.is_cpu and torch.is_grad_enabled() and not torch.compiler.is_compiling()


@cache
def fast_bf16() -> str | None:
    """The feature that makes bf16 faster than float32 on this CPU, or None."""
    path = Path("/proc/cpuinfo")
    words = path.read_text(encoding="utf-8").split() if path.exists() else []
    fast = (name for name, owner in FAST_BF16.items() if name in words and owner in words)
    return next(fast, None)
