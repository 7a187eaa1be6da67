"""Explicit matmuls against the fused kernel on a CPU, as measured for prefer_math_kernel in model/attend.py.

OMP_NUM_THREADS=2 python -m tests.benchmarks.attention
"""

import time
from statistics import median

import torch

import model.attend
from model.attend import Mask, attend

SHAPES = [(32, 4, 64, 64, 32), (16, 4, 128, 128, 32), (8, 4, 256, 256, 32)]
SHAPES += [(4, 12, 256, 256, 64), (2, 12, 512, 512, 64), (1, 12, 1024, 1024, 64)]
SHAPES += [(1, 6, 1, 128, 64), (1, 12, 1, 256, 64), (16, 12, 1, 256, 64)]  # a step of decoding
PRECISIONS = {"float32": (torch.float32, "highest"), "float32 medium": (torch.float32, "medium")}
PRECISIONS |= {"bfloat16": (torch.bfloat16, "highest")}


def make_inputs(shape, dtype, training):
    """(query, key, value) and a gradient of the output, each a transposed view as in the model."""
    batch, heads, queries, keys, width = shape
    lengths = (queries, keys, keys, queries)
    packed = [torch.randn(batch, length, heads, width).to(dtype) for length in lengths]
    *inputs, gradient = (tensor.transpose(1, 2) for tensor in packed)
    return [tensor.requires_grad_(training) for tensor in inputs], gradient


def milliseconds(shape, dtype, training, rounds=9):
    """The times of (math, fused) in interleaved rounds."""
    inputs, gradient = make_inputs(shape, dtype, training)
    times = {True: [], False: []}
    for _ in range(rounds + 1):
        for math in times:
            model.attend.prefer_math_kernel = lambda q, k, v, math=math: math
            start = time.perf_counter()
            y = attend(*inputs, Mask(causal=shape[2] > 1))
            if training:
                torch.autograd.grad(y, inputs, gradient)
            times[math].append(1000 * (time.perf_counter() - start))
    return [column[1:] for column in times.values()]  # the first round warms up


def main():
    rule = model.attend.prefer_math_kernel
    columns = "batch, heads, queries, keys, width"
    print(
        f"{columns:>34} {'dtype':>15} {'':>9} {'math ms':>9} {'fused ms':>9}  chosen  fused / math"
    )
    for shape in SHAPES:
        for precision, (dtype, matmul_precision) in PRECISIONS.items():
            torch.set_float32_matmul_precision(matmul_precision)
            for training in (True, False) if shape[2] > 1 else (False,):
                chosen = "math" if rule(*make_inputs(shape, dtype, training)[0]) else "fused"
                math, fused = milliseconds(shape, dtype, training)
                mode = "training" if training else "forward"
                ratios = [b / a for a, b in zip(math, fused, strict=True)]
                row = f"{shape!s:>34} {precision:>15} {mode:>9} {median(math):>9.2f} {median(fused):>9.2f}"
                spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"{row}  {chosen:<6}  {spread}", flush=True)


if __name__ == "__main__":
    main()
