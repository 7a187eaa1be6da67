"""Explicit matmuls against the fused kernel on a CPU: what prefer_math_kernel was derived from.

OMP_NUM_THREADS=2 python -m tests.benchmarks.attention [rounds]
"""

import sys
import time
from itertools import product
from statistics import median

import torch

import model.attend
from model.attend import Mask, attend

SHAPES = [  # batch, heads, queries, keys, width
    (32, 4, 64, 64, 32),
    (16, 4, 128, 128, 32),
    (8, 4, 256, 256, 32),
    (4, 12, 256, 256, 64),
    (2, 12, 512, 512, 64),
    (1, 12, 1024, 1024, 64),
    (1, 6, 1, 128, 64),  # from here on, a step of decoding
    (1, 12, 1, 256, 64),
    (16, 12, 1, 256, 64),
]
PRECISIONS = {
    "float32": (torch.float32, "highest"),
    "float32 medium": (torch.float32, "medium"),
    "bfloat16": (torch.bfloat16, "highest"),
}


def make_inputs(shape, dtype, training):
    """(query, key, value) and a gradient of the output, each a transposed view as in the model."""
    batch, heads, queries, keys, width = shape
    lengths = (queries, keys, keys, queries)
    packed = [torch.randn(batch, length, heads, width).to(dtype) for length in lengths]
    *inputs, gradient = (tensor.transpose(1, 2) for tensor in packed)
    return [tensor.requires_grad_(training) for tensor in inputs], gradient


def milliseconds(inputs, gradient, rounds):
    """The times of (math, fused) in interleaved rounds."""
    times = {True: [], False: []}
    mask = Mask(causal=inputs[0].shape[-2] > 1)
    for _ in range(rounds + 1):
        for math, column in times.items():
            model.attend.prefer_math_kernel = lambda *inputs, math=math: math
            start = time.perf_counter()
            y = attend(*inputs, mask)
            if y.requires_grad:
                torch.autograd.grad(y, inputs, gradient)
            column.append(1000 * (time.perf_counter() - start))
    return times[True][1:], times[False][1:]  # the first round warms up


def main(rounds=9):
    rule = model.attend.prefer_math_kernel
    columns = "batch, heads, queries, keys, width"
    times = f"{'math ms':>9} {'fused ms':>9}  chosen  fused / math"
    print(f"{columns:>34} {'dtype':>15} {'':>9} {times}")
    for shape, precision, training in product(SHAPES, PRECISIONS, (True, False)):
        if training and shape[2] == 1:
            continue
        dtype, matmul_precision = PRECISIONS[precision]
        torch.set_float32_matmul_precision(matmul_precision)
        inputs, gradient = make_inputs(shape, dtype, training)
        chosen = "math" if rule(*inputs) else "fused"
        math, fused = milliseconds(inputs, gradient, rounds)
        ratios = [b / a for a, b in zip(math, fused, strict=True)]
        cells = [
            f"{shape!s:>34}",
            f"{precision:>15}",
            f"{'training' if training else 'forward':>9}",
            f"{median(math):>9.2f}",
            f"{median(fused):>9.2f}",
            f" {chosen:<6}",
            f" {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]
        print(*cells, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
