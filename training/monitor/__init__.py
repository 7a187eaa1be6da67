"""Monitor: what a run shows and writes of itself. It looks on and never changes a weight."""

import math
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from configs.errors import CheckpointError
from training.monitor.metrics import JsonlLog, rows
from training.monitor.plot import draw_run
from training.monitor.wandb_log import WandbLogger


class NullMonitor:
    """The monitor of a process that neither writes nor shows."""

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def step(self, step, learned, factor):
        pass

    def evaluation(self, step, found, full):
        pass

    def example(self, step, shown):
        pass


class Monitor(NullMonitor):
    """metrics.jsonl, samples.jsonl, curve.png; a bar on a terminal, lines elsewhere; wandb, if asked for."""

    def __init__(self, run):
        self.run, self.log_every = run, run.config.log.every
        self.console = Console(highlight=False, soft_wrap=True)
        self.began = self.since = time.perf_counter()
        self.steps_since = 0
        self.judged = ""
        self.remote = None

    def __enter__(self):
        self.stack = ExitStack()
        self.metrics, self.samples = (
            JsonlLog(self.run.folder / name) for name in ("metrics.jsonl", "samples.jsonl")
        )
        for record in (self.metrics, self.samples):
            self.stack.callback(record.write)  # rows that wait for a disk have a last chance
        before = rows(self.metrics.path)
        self.began -= max((row.get("seconds", 0) for row in before), default=0)
        wandb = self.run.config.wandb
        if wandb.mode != "disabled":
            self.remote = WandbLogger(wandb, self.run.folder, asdict(self.run.config))
            self.stack.callback(self.remote.close)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.stack.enter_context(self.bar)
        self.task = self.bar.add_task("", total=self.run.steps, completed=self.run.state.step)
        return self

    def __exit__(self, *failure):
        self.stack.close()

    def row(self, step, **found):
        passed = {"tokens": step * self.run.tokens_per_step, "seconds": time.perf_counter() - self.began}
        self.metrics.add({"step": step, **passed, **found})
        if self.remote:
            self.remote.offer(step, row=passed | found)

    def step(self, step, learned, factor):
        self.steps_since += 1
        if step % self.log_every and not self.console.is_terminal:
            return
        now = time.perf_counter()
        passed = (now - self.since) / self.steps_since
        speed, mfu = self.run.tokens_per_step / passed, self.run.mfu(passed)
        rate = factor * self.run.optimizer.groups[0]["peak"]
        share = "" if mfu is None else f"  mfu {mfu:.1%}"
        said = f"step {step:>6}  loss {learned.loss:6.3f}{self.judged}  lr {rate:.1e}"
        said += f"  {speed / 1000:6.1f}k tok/s{share}"
        self.bar.update(self.task, completed=step, description=said)
        if step % self.log_every:
            return
        self.since, self.steps_since = now, 0
        told = {"loss": learned.loss, "lr": rate, "grad_norm": learned.norm, "tokens_per_second": speed}
        self.row(step, **told, mfu=mfu)
        if not self.console.is_terminal:
            self.console.print(said)

    def evaluation(self, step, found, full):
        """found: val_loss and val_tokens, and what else this objective can be judged by."""
        loss = found["val_loss"]
        self.row(step, **found, val_ppl=math.exp(min(loss, 700)), full=full)
        self.judged = f"  validation {loss:.3f}"
        said = [f"validation {loss:.3f}"]
        if "val_bpb" in found:
            said.append(f"{found['val_bpb']:.3f} bits per byte")
        if "val_accuracy" in found:
            said.append(f"{found['val_accuracy']:.1%} of the masked tokens guessed")
        if "val_exact" in found:
            said.append(f"{found['val_exact']:.1%} of the answers right to the letter")
        if "val_loss_other_source" in found:
            said.append(f"{found['val_loss_other_source']:.3f} with the source of another")
        whole = ", on all of it" if full else ""
        self.console.print(f"step {step:>6}  {', '.join(said)}{whole}")
        with suppress(OSError, CheckpointError):  # metrics.jsonl has told of it
            draw_run(self.run.folder / "metrics.jsonl", self.run.folder / "curve.png")
        self.since, self.steps_since = time.perf_counter(), 0  # what judging took is no training

    def example(self, step, shown):
        self.samples.add({"step": step, **shown})
        if self.remote:
            self.remote.offer(step, sample=shown)
        for name, text in shown.items():
            self.console.print(f"  {name:<14}{text!r}", markup=False)
        self.since, self.steps_since = time.perf_counter(), 0
