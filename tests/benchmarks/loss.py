"""Peak memory and time of the loss beside the plain form, at the vocabulary of GPT-2.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.loss [rounds]

Each case is a process. The ratios are those of pairs: the time of the loss over that of the plain
form which ran just before.
"""

import resource
import sys
import time
from functools import partial
from itertools import product
from statistics import median

import torch
import torch.nn.functional as F

from configs.schema import IGNORE_INDEX
from model.embedding import Head
from model.loss import loss
from tests.benchmarks._turns import in_process, ratios, spread, take_turns

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
    for tensor in (hidden, head.map.weight):
        tensor.grad = torch.zeros_like(tensor)
    before = peak_mib()
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total, _ = function(hidden, head, targets)
    total.backward()
    return total.item(), peak_mib() - before, time.perf_counter() - start


def main(rounds=3):
    print(f"{POSITIONS} positions, width {WIDTH}, vocabulary {VOCABULARY}; forward and backward")
    columns = f"{'peak MiB':>9} {'seconds':>8} {'sum':>12}  time relative to plain"
    print(f"{'targets':>8} {'dtype':>9} {'loss':>8} {columns}")
    for target_rate, autocast in product((1.0, 0.15), (False, True)):
        case = partial(in_process, measure, target_rate, autocast)
        found = take_turns([plain, loss], rounds, case)
        for function, results in found.items():
            totals, memory, seconds = zip(*results, strict=True)
            _, _, plain_seconds = zip(*found[plain], strict=True)
            dtype = "bfloat16" if autocast else "float32"
            row = f"{target_rate:>8.0%} {dtype:>9} {function.__name__:>8}"
            row += f" {median(memory):>9.0f} {median(seconds):>8.2f} {median(totals):>12.1f}"
            print(f"{row}  {spread(ratios(seconds, plain_seconds))}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
