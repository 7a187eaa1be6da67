"""Log: what a run prints and plots, metrics.jsonl, samples.jsonl and wandb. It never changes a
weight."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from configs.cli import print0, warn
from model.runs import read_rows
from training.classifier import draw_confusion
from training.cost import ideal_seconds
from training.plot import draw_run
from training.run import Run
from training.wandb_log import start_wandb

MAX_NAMED = 12  # values without a format that are printed; metrics.jsonl has all
FORMATS = {
    "loss": "loss {:6.3f}",
    "lr": "lr {:.1e}",
    "grad_norm": "grad {:.2f}",
    "tokens_per_second": "{:7,.0f} tok/s",
    "mfu": "mfu {:.0%}",
    "val_loss": "val loss {:.3f}",
    "val_ppl": "perplexity {:,.1f}",
    "val_bpb": "{:.3f} bits/byte",
    "val_accuracy": "accuracy {:.1%}",
    "val_f1": "F1 {:.3f}",
    "val_exact_match": "exact match {:.1%}",
    "confusion": "",
}


class Log:
    """The log of the main process; in the others it does nothing. On a terminal, a progress bar
    stays below all that is printed."""

    def __init__(self, folder: Path, run: Run):
        self.folder = folder
        self.run = run
        self.state = run.state
        self.is_main = run.world.is_main
        self.ideal_seconds = None  # of a step, for MFU
        if self.is_main and run.world.device.type == "cuda":
            self.ideal_seconds = ideal_seconds(run)
        self.wandb = None
        self.disk_failed = False
        console = Console(soft_wrap=True)
        has_bar = self.is_main and console.is_terminal
        self.bar = Progress(console=console, transient=True, disable=not has_bar)
        self.task = self.bar.add_task("", total=1.0)
        if self.is_main and run.config.wandb.mode != "disabled":
            self.wandb = start_wandb(folder, run.config)
        self.bar.start()
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the training speed from now on: an evaluation before it does not count."""
        self.last_time = time.perf_counter()
        self.last_step = self.state.step
        self.last_tokens = self.state.tokens

    def step(self, progress: float, values: dict[str, float]) -> None:
        state = self.state
        self.bar.update(self.task, completed=progress, description=f"step {state.step}")
        if state.step % self.run.config.log.every:
            return
        passed = time.perf_counter() - self.last_time
        # with train.minutes, progress is 0 in the first step
        left = state.seconds * (1 / progress - 1) if progress else 0.0
        values["tokens_per_second"] = (state.tokens - self.last_tokens) / passed
        if self.ideal_seconds:
            values["mfu"] = self.ideal_seconds * (state.step - self.last_step) / passed
        eta = timedelta(seconds=round(min(left, 1e9)))  # printed as 0:01:02
        self.record(values, f"ETA {eta}")

    def evaluation(self, metrics: dict, full: bool = False) -> None:
        seen = self.run.data.train.tokens_seen(self.state.step)
        n = sum(p.numel() for p in self.run.model.parameters())
        place = {"full": full, "parameters": n, "dataset": self.state.dataset}
        self.record(metrics, "(all examples)" if full else "", **place, **seen)
        is_first = self.state.step == 0 and not full  # the first should not wait for matplotlib
        if self.is_main and not is_first:
            with suppress(OSError):
                rows = list(read_rows(self.folder / "metrics.jsonl"))
                draw_run(rows, self.folder / "curve.png")
                if "confusion" in metrics:
                    classes = self.run.model.classes
                    draw_confusion(metrics["confusion"], classes, self.folder / "confusion.png")
        self.restart_clock()

    def record(self, values: dict[str, float], ending: str = "", **unprinted: Any) -> None:
        """Write a row of metrics.jsonl, send it to wandb, and print a line."""
        state = self.state
        row = {"step": state.step, "tokens": state.tokens, "seconds": state.seconds}
        row |= values | unprinted
        self.append("metrics.jsonl", row)
        if self.wandb:
            try:
                self.wandb.log(row, step=state.step)
            except Exception as error:  # whatever the service does, the run continues
                warn(f"wandb logging stopped ({type(error).__name__}: {error!s:.200})")
                self.wandb = None
        if words := in_words(values):
            print0(f"step {state.step:>6}  {words}  {ending}".rstrip())
        self.restart_clock()

    def sample(self, texts: dict[str, str]) -> None:
        self.append("samples.jsonl", {"step": self.state.step, **texts})
        for name, text in texts.items():
            print0(f"  {name:<14}{text!r}")
        self.restart_clock()

    def append(self, name: str, row: dict) -> None:
        """Append a row to a file. A full disk costs rows, but not the run."""
        if not self.is_main:
            return
        path = self.folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            if not self.disk_failed:
                warn(f"{path} cannot be written ({error.strerror}); the run continues")
            self.disk_failed = True

    def close(self) -> None:
        self.bar.stop()
        if self.wandb:
            with suppress(Exception):  # whatever the service does, the run has ended
                self.wandb.finish()


def in_words(values: Mapping[str, float]) -> str:
    """Format values for a line; those without a format, such as user metrics, have their names."""
    words = [FORMATS[name].format(values[name]) for name in values if name in FORMATS]
    named = [f"{name} {values[name]:.4g}" for name in values if name not in FORMATS]
    return "  ".join(filter(None, words + named[:MAX_NAMED]))
