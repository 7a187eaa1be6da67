"""What each option of a group brings and costs beside the default: loss, time of a step, memory.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.options attention norm=layernorm --seeds 3

Other overrides, such as size=tiny, hold for all runs. Each gets the same data in the same order.
"""

import argparse
import time
from statistics import mean, median

from configs.compose import compose
from data.corpus import load_data
from tests.benchmarks._turns import spread
from tests.benchmarks.step import Ours
from tests.parts import names
from training import cost
from training.evaluation import evaluate
from training.optimizer import set_lr
from training.schedule import RunLength, build_schedule
from training.step import seed_step

GROUPS = ("attention", "position", "norm", "ffn", "block", "optimizer", "schedule", "tokenizer")
DOWNLOADED = ("gpt2", "cl100k", "o200k")
CHOICES = [f"tokenizer.vocab_size={n}" for n in (2048, 4096, 8192)]
for group in GROUPS:
    CHOICES += [f"{group}={name}" for name in names(group) if name not in DOWNLOADED]
TIMED_STEPS = 30  # in turn with those of the default


class Run(Ours):
    """A run of train.py, without its folder, that can wait after each step."""

    def __init__(self, overrides):
        config = compose(overrides)
        data = load_data(config)
        super().__init__(config, data.tokenizer.vocab_size, data)
        self.length = RunLength(config.train, data.train.tokens_per_example, data.train.n)
        self.schedule = build_schedule(config.schedule, self.length.scheduled_steps)

    def train(self, n_steps):
        """(loss, seconds) of each step"""
        run = self.run
        for _ in range(n_steps):
            batch = run.data.train.batch(run.state.step)
            seed_step(run.config.seed, run.state.step, 0)
            start = time.perf_counter()
            set_lr(run.optimizers, self.schedule(self.length.progress(run.state)))
            loss = self(batch)
            run.state.step += 1
            yield loss, time.perf_counter() - start


def measure(settings, overrides, steps, seed):
    """(bits per byte, time of a step beside the default's, bytes of memory)"""
    common = [f"train.steps={steps}", f"seed={seed}"]
    chosen = Run([*settings, *common])
    default = Run([*overrides, *common])
    timed = min(steps, TIMED_STEPS)
    pairs = zip(chosen.train(timed), default.train(timed), strict=True)
    ratio = median(own / other for (_, own), (_, other) in pairs)
    list(chosen.train(steps - timed))
    run = chosen.run
    metrics = evaluate(run)
    counted = cost.count(run.config, run.world.precision, run.data.tokenizer.vocab_size)
    return metrics["val_bpb"], ratio, sum(counted.states.values()) + counted.activations


def row(choice, results, defaults):
    """A row of the table: each seed is compared with the same seed of the default."""
    losses, times, sizes = zip(*results, strict=True)
    default_losses, _, default_sizes = zip(*defaults, strict=True)
    loss = f"{mean(losses):.3f}"
    if choice:
        losses = [own - other for own, other in zip(losses, default_losses, strict=True)]
        loss = f"{mean(losses):+.3f}"
    scatter = f"{max(losses) - min(losses):.3f}"
    memory = f"{sizes[0] / default_sizes[0]:.2f}x"
    return f"| {choice or 'default'} | {loss} | {scatter} | {spread(times)} | {memory} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("choices", nargs="*", metavar="group, group=option or key=value")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    given = {*args.choices}
    chosen = [choice for choice in CHOICES if given & {choice, choice.partition("=")[0]}]
    overrides = [choice for choice in args.choices if "=" in choice and choice not in chosen]
    print("| option | bits per byte | range | step time | memory |")
    print("| --- | --- | --- | --- | --- |")
    defaults = []
    for choice in ["", *(chosen or CHOICES)]:
        settings = [*overrides, choice] if choice else overrides
        if choice and compose(settings) == compose(overrides):
            continue
        results = [measure(settings, overrides, args.steps, seed) for seed in range(args.seeds)]
        defaults = defaults or results
        print(row(choice, results, defaults), flush=True)


if __name__ == "__main__":
    main()
