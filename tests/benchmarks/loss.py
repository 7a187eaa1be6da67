"""Peak memory and time of the loss beside the plain form, at the vocabulary of GPT-2. Each case is a process.

OMP_NUM_THREADS=2 python -m tests.benchmarks.loss
"""

import itertools
import multiprocessing
import resource
import time

import torch
import torch.nn.functional as F

from configs.schema import IGNORE_INDEX
from model.embedding import Head
from model.loss import loss

POSITIONS, WIDTH, VOCABULARY = 8192, 768, 50304


def plain(hidden, head, targets):
    logits = head(hidden).float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum"), None


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(target_rate, autocast, function):
    """(the loss, peak memory above its inputs, seconds)"""
    torch.manual_seed(0)
    head = Head(WIDTH, VOCABULARY)
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    targets = torch.randint(VOCABULARY, (POSITIONS,))
    targets[torch.rand(POSITIONS) >= target_rate] = IGNORE_INDEX
    hidden.grad, head.map.weight.grad = torch.zeros_like(hidden), torch.zeros_like(head.map.weight)
    before, start = peak_mib(), time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total, _ = function(hidden, head, targets)
    total.backward()
    return total.item(), peak_mib() - before, time.perf_counter() - start


def main():
    print(f"{POSITIONS} positions, width {WIDTH}, vocabulary {VOCABULARY}; forward and backward")
    print(f"{'targets':>8} {'dtype':>9} {'loss':>8} {'peak MiB':>9} {'seconds':>8} {'sum':>12}")
    for case in itertools.product((1.0, 0.15), (False, True), (plain, loss)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            total, memory, seconds = pool.apply(measure, case)
        target_rate, autocast, function = case
        dtype = "bfloat16" if autocast else "float32"
        row = f"{target_rate:>8.0%} {dtype:>9} {function.__name__:>8}"
        print(f"{row} {memory:>9.0f} {seconds:>8.2f} {total:>12.1f}", flush=True)


if __name__ == "__main__":
    main()
