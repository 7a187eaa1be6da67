"""Monitor: what a run prints and logs. It never changes a weight."""

import math
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from configs.cli import clock
from configs.errors import CheckpointError
from training.monitor.plot import draw_run
from training.monitor.wandb_log import WandbLogger

EVALUATION = {
    "val_loss": "val loss {:.3f}",
    "val_bpb": "{:.3f} bits/byte",
    "val_accuracy": "masked accuracy {:.1%}",
    "val_exact_match": "exact match {:.1%}",
    "val_loss_shuffled_source": "loss with shuffled sources {:.3f}",
}


@contextmanager
def open_monitor(run):
    if not run.dist.is_main:
        yield SimpleNamespace(
            **dict.fromkeys(("step", "evaluation", "sample"), lambda *args, **kwargs: None)
        )
        return
    monitor = Monitor(run)
    try:
        with monitor.bar:
            yield monitor
    finally:
        if monitor.wandb:
            monitor.wandb.close()
        for log in (
            monitor.metrics,
            monitor.samples,
        ):  # the last chance for rows that could not be written
            log.flush()


class Monitor:
    """metrics.jsonl, samples.jsonl, curve.png and wandb; a progress bar on a terminal, lines elsewhere."""

    def __init__(self, run):
        self.run, self.console = run, Console(highlight=False, soft_wrap=True)
        self.metrics, self.samples = run.logs
        self.wandb = (
            None if run.config.wandb.mode == "disabled" else WandbLogger(run.config, run.folder)
        )
        columns, hidden = (
            (TextColumn("{task.description}"), BarColumn()),
            not self.console.is_terminal,
        )
        self.bar = Progress(*columns, console=self.console, transient=True, disable=hidden)
        self.task = self.bar.add_task("", total=run.steps, completed=run.state.step)
        self.peak_flops = run.precision.peak_flops()
        self.start, self.first_step, self.warned = time.perf_counter(), run.state.step, False
        self.measure_from(self.first_step)

    def measure_from(self, step):
        """The speed of the next steps is measured from here, for an evaluation is not training time."""
        self.last, self.last_step, self.waiting = time.perf_counter(), step, seconds_waiting()

    def log(self, step, **values):
        row = {"tokens": step * self.run.tokens_per_step, "seconds": self.run.elapsed(), **values}
        self.metrics.add({"step": step, **row})
        if self.wandb:
            self.wandb.log(step, row=row)

    def step(self, step, metrics):
        """Log every log.every steps; a terminal shows each one."""
        due = step % self.run.config.log.every == 0
        if not due and not self.console.is_terminal:
            return
        run, now = self.run, time.perf_counter()
        seconds = (now - self.last) / (step - self.last_step)
        speed, lr = run.tokens_per_step / seconds, run.optimizer.lr
        mfu = (
            self.peak_flops and run.cost.flops / seconds / self.peak_flops
        )  # model FLOPs utilization
        eta = (now - self.start) / (step - self.first_step) * (run.steps - step)
        line = f"step {step:>6}  loss {metrics.loss:6.3f}  lr {lr:.1e}  grad norm {metrics.grad_norm:.2f}"
        line += f"  {speed / 1000:6.1f}k tok/s" + ("" if mfu is None else f"  mfu {mfu:.1%}")
        line += f"  epoch {run.epochs(step):.2f}  elapsed {clock(run.elapsed())}  ETA {clock(eta)}"
        self.bar.update(self.task, completed=step, description=line)
        if due:
            self.warn_of_busy_cores(now - self.last)
            self.measure_from(step)
            values = {"loss": metrics.loss, "lr": lr, "grad_norm": metrics.grad_norm}
            self.log(step, **values, tokens_per_second=speed, mfu=mfu)
            if not self.console.is_terminal:
                self.console.print(line)

    def warn_of_busy_cores(self, seconds):
        """Each operation waits for the slowest thread; one that shares its core waits half of the time."""
        threads = self.run.precision.n_threads
        busy = round(2 * (seconds_waiting() - self.waiting) / seconds)
        if busy > 0 and threads > 1 and not self.warned:
            fewer = f"OMP_NUM_THREADS={max(1, threads - busy)}"
            self.console.print(
                f"warning: other processes use the cores of this one; {fewer} may be faster"
            )
            self.warned = True

    def evaluation(self, step, metrics, full):
        self.log(step, **metrics, val_ppl=math.exp(min(metrics["val_loss"], 700)), full=full)
        parts = [text.format(metrics[name]) for name, text in EVALUATION.items() if name in metrics]
        if full or step < self.run.steps:  # at the end the full one follows
            self.console.print(f"step {step:>6}  {', '.join(parts)}{' (full)' if full else ''}")
        if (
            full or step > self.first_step
        ):  # before it nothing is drawn, for matplotlib delays the first step
            with suppress(OSError, CheckpointError):  # a JsonlLog has warned about the disk
                draw_run(self.run.folder / "metrics.jsonl", self.run.folder / "curve.png")
        self.measure_from(step)

    def sample(self, step, texts):
        self.samples.add({"step": step, **texts})
        if self.wandb:
            self.wandb.log(step, sample=texts)
        for name, text in texts.items():
            self.console.print(f"  {name:<14}{text!r}", markup=False)
        self.measure_from(step)


def seconds_waiting():
    """How long threads of this process were ready to run while others had the cores; 0 if not on Linux."""
    waiting = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waiting += int(path.read_text().split()[1]) / 1e9
    return waiting
