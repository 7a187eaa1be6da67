"""Peak memory and time of the loss beside the plain form, at the vocabulary of GPT-2. Each case is a process.

OMP_NUM_THREADS=2 python tests/benchmarks/loss.py
"""

import multiprocessing
import resource
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))
from model.embedding import Head
from model.loss import IGNORE_INDEX, loss

POSITIONS, WIDTH, VOCABULARY = 8192, 768, 50304


def plain(hidden, head, targets):
    logits = head(hidden).float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum"), None


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(form, keep, autocast, results):
    torch.manual_seed(0)
    head = Head(WIDTH, VOCABULARY)
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    targets = torch.randint(VOCABULARY, (POSITIONS,))
    targets[torch.rand(POSITIONS) >= keep] = IGNORE_INDEX
    hidden.grad, head.map.weight.grad = torch.zeros_like(hidden), torch.zeros_like(head.map.weight)
    before, start = peak(), time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total, _ = form(hidden, head, targets)
    total.backward()
    results.put((total.item(), peak() - before, time.perf_counter() - start))


def main():
    start = multiprocessing.get_context("spawn")
    print(f"{POSITIONS} positions, width {WIDTH}, vocabulary {VOCABULARY}; forward and backward")
    print(f"{'targets':>8} {'numbers':>9} {'form':>8} {'peak MiB':>9} {'seconds':>8} {'loss sum':>12}")
    for keep in (1.0, 0.15):
        for autocast in (False, True):
            for form in (plain, loss):
                results = start.Queue()
                process = start.Process(target=measure, args=(form, keep, autocast, results))
                process.start()
                total, memory, seconds = results.get()
                process.join()
                numbers, name = "bfloat16" if autocast else "float32", form.__name__
                print(f"{keep:>8.0%} {numbers:>9} {name:>8} {memory:>9.0f} {seconds:>8.2f} {total:>12.1f}")


if __name__ == "__main__":
    main()
