"""What each option of a group brings and costs beside the default: loss, time of a step, memory.

OMP_NUM_THREADS=2 python -m tests.benchmarks.options attention position norm=layernorm --steps 1000 --seeds 3

Other overrides, such as size=tiny, hold for all runs. Every run gets the same data in the same order.
"""

import argparse
import time
from statistics import mean, median

from configs.compose import compose
from tests.parts import names
from train import prepare
from training.evaluate import evaluate_run
from training.step import seed_step

GROUPS = ("attention", "position", "norm", "ffn", "block", "optimizer", "schedule", "tokenizer")
DOWNLOADED = ("gpt2", "cl100k", "o200k")
CHOICES = [f"{group}={name}" for group in GROUPS for name in names(group) if name not in DOWNLOADED]
CHOICES += [f"tokenizer.vocab_size={n}" for n in (2048, 4096, 8192)]
TIMED_STEPS = 30  # in turn with those of the default


def train(run, steps, seed):
    """Seconds of each step."""
    for step in steps:
        batch = run.loaders.train.batch(step)
        seed_step(seed, step)
        start = time.perf_counter()
        run.train_step(batch, run.schedule(step))
        yield time.perf_counter() - start


def measure(choice, overrides, steps, seed):
    """(bits per byte of the validation set, time of a step beside the default's, bytes of memory)"""
    common = [*overrides, f"train.steps={steps}", f"seed={seed}"]
    both = [*common, *choice], common
    run, default = (prepare(compose(settings), settings) for settings in both)
    timed = range(min(steps, TIMED_STEPS))
    seconds = zip(train(run, timed, seed), train(default, timed, seed), strict=True)
    ratio = median(own / other for own, other in seconds)
    list(train(run, range(len(timed), steps), seed))
    weights = 8 * sum(p.numel() for p in run.model.parameters())
    memory = weights + run.cost.optimizer_bytes + run.cost.activation_bytes
    return evaluate_run(run)["val_bpb"], ratio, memory


def row(choice, results, defaults):
    """A row of the table: each seed is compared with the same seed of the default."""
    losses, ratios, bytes = zip(*results, strict=True)
    changes = [a - b[0] for a, b in zip(losses, defaults, strict=True)] if choice else losses
    loss = f"{mean(changes):+.3f}" if choice else f"{mean(changes):.3f}"
    memory = f"{bytes[0] / defaults[0][2]:.2f}x"
    times = f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
    cells = [loss, f"{max(changes) - min(changes):.3f}", times, memory]
    return f"| {' | '.join([choice or 'default', *cells])} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("choices", nargs="*", metavar="group, group=option or key=value")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    chosen = [c for c in CHOICES if {c, c.partition("=")[0]} & {*args.choices}]
    overrides = [c for c in args.choices if "=" in c and c not in chosen]
    chosen = [c for c in chosen or CHOICES if compose([*overrides, c]) != compose(overrides)]
    print(
        "| option | bits per byte | range | step time | memory |\n| --- | --- | --- | --- | --- |"
    )
    defaults = []
    for choice in [None, *chosen]:
        seeds = range(args.seeds)
        results = [
            measure([choice] if choice else [], overrides, args.steps, seed) for seed in seeds
        ]
        defaults = defaults or results
        print(row(choice, results, defaults), flush=True)


if __name__ == "__main__":
    main()
