"""The memory that dry_run=plan estimates, beside the peak of real steps.

python -m tests.benchmarks.memory
"""

import resource
import subprocess
import sys

import torch

import training.estimate
from configs.compose import compose
from configs.registry import build
from model.loss import CHUNK
from model.precision import Precision
from model.transformer import build_model
from training.distributed import Dist
from training.estimate import count, fake_batch, memory, vocab_size
from training.optimizer import OPTIMIZERS
from training.step import LossModule, TrainStep, recompute_blocks

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
    config = compose(overrides)
    rows, recompute, dtype = config.train.batch_size, config.train.recompute, torch.float32
    training.estimate.GPU_CHUNK = CHUNK  # of the loss, on a CPU
    expected = memory(count(config, dtype), "none", recompute, 1, rows, dtype)
    torch.ones(512, 512) @ torch.ones(512, 512)  # the buffers of the library
    before = resident()
    model = build_model(config.model, vocab_size(config))
    if recompute == "block":
        recompute_blocks(model)
    optimizer = build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    precision = Precision(torch.device("cpu"), dtype, "for a benchmark")
    step = TrainStep(LossModule(model), optimizer, precision, Dist(), rows, 1.0)
    for _ in range(2):
        step(fake_batch(config, rows), 1.0)
    return expected, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def main(overrides):
    if not overrides:
        for case in CASES:
            subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.memory", *case.split()], check=True
            )
        return
    expected, measured = (size / 2**20 for size in measure(overrides))
    sizes = (
        f"{expected:8,.0f} MiB estimated, {measured:8,.0f} MiB measured, {expected / measured:.2f}"
    )
    print(f"{sizes}  {' '.join(overrides)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
