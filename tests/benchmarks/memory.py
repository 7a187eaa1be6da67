"""The memory that dry_run=true estimates, beside the peak of real steps.

python -m tests.benchmarks.memory
"""

import resource
import sys

import torch

from configs.compose import compose
from model.loss import CHUNK
from tests.benchmarks._turns import in_process
from tests.benchmarks.step import Ours, random_batch
from tests.training.test_cost import FP32
from training import cost, plan

CASES = (  # each needs some GB
    "model=gpt2 size=124m tokenizer=gpt2 optimizer=adamw train.batch_size=4",
    "model=llama size=124m tokenizer=byte optimizer=muon train.batch_size=4 train.recompute=block",
    "model=t5 size=124m model.context_length=512 optimizer=adamw train.batch_size=4",
)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measure(overrides):
    """(estimated, measured) bytes of two steps."""
    config = compose([*overrides, "device=cpu", "precision=fp32"])
    rows = config.train.batch_size
    vocab_size = config.tokenizer.get("vocab_size") or plan.VOCAB_SIZES[config.tokenizer["kind"]]
    cost.GPU_CHUNK = CHUNK  # of the loss, on a CPU
    expected = cost.count(config, FP32, vocab_size).memory(rows, shards=1)
    torch.ones(512, 512) @ torch.ones(512, 512)  # the buffers of the library
    before = resident()
    ours = Ours(config, vocab_size)
    for _ in range(2):
        ours(random_batch(config.model, vocab_size, rows))
    return expected, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def main(overrides):
    for case in [overrides] if overrides else map(str.split, CASES):
        expected, measured = (size / 2**20 for size in in_process(measure, case))
        sizes = f"{expected:8,.0f} MiB estimated, {measured:8,.0f} MiB measured"
        print(f"{sizes}, {expected / measured:.2f}  {' '.join(case)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
