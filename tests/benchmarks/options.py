"""What each option of a group brings and costs beside the default: loss, time of a step, memory.

OMP_NUM_THREADS=2 python -m tests.benchmarks.options attention position norm=layernorm --steps 1000 --seeds 3

Other overrides, such as size=tiny, hold for all runs. Every run gets the same data in the same order.
"""

import argparse
import time
from statistics import mean, median

from configs.compose import compose
from data.corpus import load
from tests.benchmarks.step import Ours
from tests.parts import names
from training import cost
from training.evaluate import evaluate
from training.optimizer import set_lr
from training.schedule import Progress, build_schedule
from training.step import seed_step

GROUPS = ("attention", "position", "norm", "ffn", "block", "optimizer", "schedule", "tokenizer")
DOWNLOADED = ("gpt2", "cl100k", "o200k")
CHOICES = [f"{group}={name}" for group in GROUPS for name in names(group) if name not in DOWNLOADED]
CHOICES += [f"tokenizer.vocab_size={n}" for n in (2048, 4096, 8192)]
TIMED_STEPS = 30  # in turn with those of the default


class Run:
    """A run of train.py, without its folder, that can be interrupted after each step."""

    def __init__(self, overrides):
        self.config = compose(overrides)
        self.data = load(self.config)
        self.vocab_size = self.data.tokenizer.vocab_size
        self.step = Ours(self.config, self.vocab_size)
        self.progress = Progress(self.config.train, self.data.train)
        self.schedule = build_schedule(self.config.schedule, self.progress.steps)

    def train(self, n_steps):
        """The seconds of each step."""
        state = self.step.state
        for _ in range(n_steps):
            batch = self.data.train.batch(state.step)
            seed_step(self.config.seed, state.step, 0)
            start = time.perf_counter()
            set_lr(self.step.optimizers, self.schedule(self.progress(state)))
            self.step(batch)
            state.step += 1
            yield time.perf_counter() - start

    def memory(self):
        dtype = self.step.world.precision.dtype
        counted = cost.count(self.config, dtype, self.vocab_size)
        return 8 * counted.n + counted.optimizer + counted.activations

    def bits_per_byte(self):
        metrics = evaluate(
            self.step.module, self.data, self.step.world, self.config.train.batch_size
        )
        return metrics["val_bpb"]


def measure(choice, overrides, steps, seed):
    """(bits per byte of the validation set, time of a step beside the default's, bytes of memory)"""
    common = [*overrides, f"train.steps={steps}", f"seed={seed}"]
    run = Run([*common, *choice])
    default = Run(common)
    timed = min(steps, TIMED_STEPS)
    pairs = zip(run.train(timed), default.train(timed), strict=True)
    ratio = median(own / other for own, other in pairs)
    list(run.train(steps - timed))
    return run.bits_per_byte(), ratio, run.memory()


def row(choice, results, defaults):
    """A row of the table: each seed is compared with the same seed of the default."""
    losses, ratios, sizes = zip(*results, strict=True)
    changes = losses
    loss = f"{mean(losses):.3f}"
    if choice:
        changes = [a - b[0] for a, b in zip(losses, defaults, strict=True)]
        loss = f"{mean(changes):+.3f}"
    times = f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
    memory = f"{sizes[0] / defaults[0][2]:.2f}x"
    cells = [choice or "default", loss, f"{max(changes) - min(changes):.3f}", times, memory]
    return f"| {' | '.join(cells)} |"


def main():
    description = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=description)
    parser.add_argument("choices", nargs="*", metavar="group, group=option or key=value")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    chosen = [c for c in CHOICES if {c, c.partition("=")[0]} & {*args.choices}]
    overrides = [c for c in args.choices if "=" in c and c not in chosen]
    chosen = [c for c in chosen or CHOICES if compose([*overrides, c]) != compose(overrides)]
    print("| option | bits per byte | range | step time | memory |")
    print("| --- | --- | --- | --- | --- |")
    defaults = []
    for choice in [None, *chosen]:
        results = []
        for seed in range(args.seeds):
            results.append(measure([choice] if choice else [], overrides, args.steps, seed))
        defaults = defaults or results
        print(row(choice, results, defaults), flush=True)


if __name__ == "__main__":
    main()
