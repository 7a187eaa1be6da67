"""Monitor: what a run shows and writes of itself. It looks on and never changes a weight."""

import json
import math
import time
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Silence:
    """The monitor of a process that neither writes nor shows."""

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def step(self, step, learned, factor):
        pass

    def evaluation(self, step, loss, count, full):
        pass

    def exact(self, step, share):
        pass

    def example(self, step, shown):
        pass


class Monitor(Silence):
    """metrics.jsonl, samples.jsonl and curve.png; a bar on a terminal, lines elsewhere."""

    def __init__(self, run):
        self.run, self.log_every = run, run.config.log.every
        self.console = Console(highlight=False)
        self.began = self.since = time.perf_counter()
        self.steps_since = 0
        self.judged = ""

    def __enter__(self):
        self.stack = ExitStack()
        self.metrics, self.samples = (
            self.stack.enter_context((self.run.folder / name).open("a", encoding="utf-8"))
            for name in ("metrics.jsonl", "samples.jsonl")
        )
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.stack.enter_context(self.bar)
        self.task = self.bar.add_task("", total=self.run.config.train.steps)
        return self

    def __exit__(self, *failure):
        self.stack.close()

    def row(self, step, **found):
        passed = {"tokens": step * self.run.tokens_per_step, "seconds": time.perf_counter() - self.began}
        self.metrics.write(json.dumps({"step": step, **passed, **found}) + "\n")
        self.metrics.flush()

    def step(self, step, learned, factor):
        self.steps_since += 1
        self.bar.update(
            self.task, completed=step, description=f"step {step}  loss {learned.loss:.3f}{self.judged}"
        )
        if step % self.log_every:
            return
        now = time.perf_counter()
        speed = self.steps_since * self.run.tokens_per_step / (now - self.since)
        self.since, self.steps_since = now, 0
        rate = factor * self.run.optimizer.groups[0]["peak"]
        self.row(step, loss=learned.loss, lr=rate, grad_norm=learned.norm, tokens_per_second=speed)
        if not self.console.is_terminal:
            self.console.print(
                f"step {step:>6}  loss {learned.loss:6.3f}  lr {rate:.1e}  norm {learned.norm:6.2f}  "
                f"{speed / 1000:6.1f}k tok/s"
            )

    def evaluation(self, step, loss, count, full):
        found = {"val_loss": loss, "val_ppl": math.exp(min(loss, 700)), "val_tokens": count, "full": full}
        bits = ""
        if self.run.bytes_per_token:
            found["val_bpb"] = loss / math.log(2) / self.run.bytes_per_token
            bits = f", {found['val_bpb']:.3f} bits per byte"
        self.row(step, **found)
        self.judged = f"  validation {loss:.3f}"
        whole = ", on all of it" if full else ""
        self.console.print(f"step {step:>6}  validation {loss:.3f}{bits}{whole}")
        draw(self.run.folder / "metrics.jsonl", self.run.folder / "curve.png")
        self.since, self.steps_since = time.perf_counter(), 0  # what judging took is no training

    def exact(self, step, share):
        self.row(step, val_exact=share)
        self.console.print(f"step {step:>6}  {share:.1%} of the answers are right to the letter")

    def example(self, step, shown):
        self.samples.write(json.dumps({"step": step, **shown}) + "\n")
        self.samples.flush()
        for name, text in shown.items():
            self.console.print(f"  {name:<14}{text!r}", markup=False)


def draw(metrics, picture):
    """Loss against tokens."""
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, label, style in (("loss", "training", "-"), ("val_loss", "validation", "o-")):
        if points := [(row["tokens"], row[name]) for row in rows if name in row]:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=3)
    axes.set(xlabel="tokens", ylabel="loss, nats a token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=110)
