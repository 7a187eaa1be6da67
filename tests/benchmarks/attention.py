"""Explicit matmuls against the fused kernel on a CPU, as measured for prefer_math_kernel in model/attend.py.

OMP_NUM_THREADS=2 python tests/benchmarks/attention.py
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
import model.attend
from model.attend import Mask, attend

SHAPES = [
    (32, 4, 64, 64, 32),
    (16, 4, 128, 128, 32),
    (8, 4, 256, 256, 32),
    (4, 12, 256, 256, 64),
    (2, 12, 512, 512, 64),
    (1, 12, 1024, 1024, 64),
    (1, 6, 1, 128, 64),
    (1, 12, 1, 256, 64),
    (16, 12, 1, 256, 64),
]


def tensors(batch, heads, queries, keys, width, dtype, training):
    """Heads of one packed tensor, as `split` makes them."""
    lengths = (queries, keys, keys, queries)
    made = [torch.randn(batch, n, heads, width).to(dtype).transpose(1, 2) for n in lengths]
    return [t.requires_grad_(training) for t in made[:3]], made[3]


def milliseconds(shape, dtype, training, rounds=9):
    """The medians of (math, fused) over interleaved rounds."""
    inputs, gradient = tensors(*shape, dtype, training)
    times = {True: [], False: []}
    for _ in range(rounds):
        for math in times:
            model.attend.prefer_math_kernel = lambda q, k, v, math=math: math
            start = time.perf_counter()
            y = attend(*inputs, Mask(causal=shape[2] > 1))
            if training:
                torch.autograd.grad(y, inputs, gradient)
            times[math].append(1000 * (time.perf_counter() - start))
    return [sorted(t)[rounds // 2] for t in times.values()]


NUMBERS = {
    "float32": (torch.float32, "highest"),
    "float32 medium": (torch.float32, "medium"),
    "bfloat16": (torch.bfloat16, "highest"),
}


def main():
    rule = model.attend.prefer_math_kernel
    shape = "batch, heads, queries, keys, width"
    print(f"{shape:>34} {'dtype':>15} {'':>9} {'math ms':>9} {'fused ms':>9}  chosen")
    for shape in SHAPES:
        for numbers, (dtype, precision) in NUMBERS.items():
            torch.set_float32_matmul_precision(precision)
            for training in (True, False) if shape[2] > 1 else (False,):
                inputs, _ = tensors(*shape, dtype, training)
                chosen = "math" if rule(*inputs) else "fused"
                math, fused = milliseconds(shape, dtype, training)
                doing = "training" if training else "forward"
                print(f"{shape!s:>34} {numbers:>15} {doing:>9} {math:>9.2f} {fused:>9.2f}  {chosen}")


if __name__ == "__main__":
    main()
