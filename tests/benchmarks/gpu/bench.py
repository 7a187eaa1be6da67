"""What the checks share: runs of train.py."""

import gc
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

import train
from configs.compose import compose
from model.checkpoint import read_state
from model.precision import DTYPES, Precision, choose_device
from model.runs import read_rows
from tests.benchmarks.step import random_batch
from tests.training import runs

COMMON = """
    data=text data.path=text.txt data.cache=cache tokenizer=char model.dropout=0
    eval.every=null sample.every=null log.every=1
"""
FULL = "model=gpt2 size=124m optimizer=adamw train.batch_size=64 train.steps=30"
TINY = "size=tiny model.context_length=32 train.batch_size=8 train.steps=6 device=cpu"
STOPPED = 75  # the exit code of a run that a signal has stopped
CHARACTERS = {False: 50_256, True: 63}  # of the text: GPT-2's vocabulary, without the end token


def write_text(tiny):
    """Random characters, some of them frequent, so that there is something to learn."""
    n = CHARACTERS[tiny]
    draws = np.random.default_rng(0).random(5000 if tiny else 1_000_000)
    codes = 0x1000 + np.concatenate([np.arange(n), (n * draws**3).astype(int)])
    Path("text.txt").write_text("".join(map(chr, codes)), encoding="utf-8")


class Bench:
    """On a GPU or, with tiny models, on a CPU."""

    def __init__(self, tiny):
        self.tiny = tiny
        self.device = choose_device("cpu" if tiny else "cuda")
        self.vocab_size = CHARACTERS[tiny] + 1
        if tiny:
            torch.compile = partial(torch.compile, backend="eager")

    def pick(self, full, tiny):
        return tiny if self.tiny else full

    def settings(self, *overrides):
        """A command line of train.py; of two values, the later one counts."""
        return f"{COMMON} {FULL} {' '.join(overrides)} {self.pick('', TINY)}".split()

    def config(self, *overrides):
        return compose(self.settings(*overrides))

    def precision(self, dtype):
        return Precision(self.device, DTYPES[dtype], "for a benchmark")

    def batch(self, config, rows):
        return random_batch(config.model, self.vocab_size, rows)

    def train(self, name, *overrides, before=None):
        """The figures of a run of train.py. before: {step: what is called before it}"""
        release()
        actions = {0: reset_peak} | (before or {})
        update = train.update

        def watched(run, *args):
            if run.state.step in actions:
                actions[run.state.step]()
            return update(run, *args)

        train.update = watched
        code = runs.train(f"name={name}", *self.settings(*overrides))
        train.update = update
        if code not in (0, STOPPED):
            raise SystemExit(code)
        return figures(name)


def figures(name):
    """Of a run; its speed is that of the second half of its steps."""
    run = Path("runs", name)
    rows = list(read_rows(run / "metrics.jsonl"))
    steps = [row for row in rows if "loss" in row]
    later = steps[len(steps) // 2 :]
    mfu = [row["mfu"] for row in later if "mfu" in row]
    return {
        "first_step_seconds": steps[0]["seconds"],
        "loss": steps[-1]["loss"],
        "val_loss": rows[-1].get("val_loss"),
        "tokens_per_second": median(row["tokens_per_second"] for row in later),
        "mfu": median(mfu) if mfu else None,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "micro_batch_size": read_state(runs.newest(run))["micro_batch_size"],
    }


def saved(name):
    return runs.tensors(Path("runs", name))


def release():
    """Forget compiled code, and return memory that nothing holds."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def reset_peak():
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
