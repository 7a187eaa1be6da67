"""Run: everything that belongs to one training run, and what it saves."""

import errno
import math
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from configs.cli import print
from configs.errors import DiskError, NonFiniteError, StopRequested
from configs.registry import build
from data.disk import filesize
from model.checkpoint.files import FORMAT, TrainState
from model.checkpoint.save import draft_dir, model_tensors
from training.checkpointer import AsyncCheckpointer
from training.distributed import check_stop, stop_flags
from training.monitor.metrics import JsonlLog, rows
from training.run_folder import open_run_folder
from training.schedule import SCHEDULES
from training.sharding import write_parts

STEP_TIME_FRACTION = 0.95  # of train.minutes is planned for steps, the rest for evaluations


class Run:
    def __init__(self, config, overrides, loaders, train_step, cost, stored=None):
        self.config, self.overrides, self.loaders = config, overrides, loaders
        self.train_step, self.cost = train_step, cost
        self.model, self.optimizer, self.scaler = (
            train_step.model,
            train_step.optimizer,
            train_step.scaler,
        )
        self.dist, self.precision = train_step.dist, train_step.precision
        self.stored = stored  # the checkpoint to resume from
        self.from_best = (
            stored and stored.is_best
        )  # saved before its evaluation was recorded: evaluate again
        self.folder = self.checkpointer = None  # only in the main process, while the run is open
        train = config.train
        self.examples = "pairs" if config.objective["kind"] == "pairs" else "sequences"
        self.tokens_per_step = round(train.batch_size * loaders.train.tokens_per_example)
        self.stop_criteria = [train.steps, train.tokens, train.epochs, train.minutes]
        self.state = stored.state if stored else TrainState()
        same_length = stored and train.minutes and stored.state.stop_criteria == self.stop_criteria
        self.steps = self.total_steps(same_length and stored.state.total_steps)
        if self.steps < self.state.step:
            limits = f"train.steps, tokens, epochs or minutes would end it at {self.steps}"
            raise ValueError(
                f"the run has done {self.state.step} steps, but {limits}; raise or remove them"
            )
        if self.steps:
            self.schedule = build("schedule", SCHEDULES, config.schedule, {"steps": self.steps})

    def total_steps(self, by_minutes=None):
        """The first of train.steps, tokens, epochs and minutes to end the run, as a number of steps."""
        train, seconds = (
            self.config.train,
            self.cost.seconds * self.dist.is_main,
        )  # the main process decides
        [seconds] = self.dist.all_reduce_sum(seconds, device=self.precision.device)
        limits = [
            train.steps,
            train.tokens and math.ceil(train.tokens / self.tokens_per_step),
            train.epochs and math.ceil(train.epochs * self.loaders.train.n / train.batch_size),
            by_minutes
            or (train.minutes and max(1, int(STEP_TIME_FRACTION * train.minutes * 60 / seconds))),
        ]
        return min(steps for steps in limits if steps is not None)

    def epochs(self, step):
        return step * self.config.train.batch_size / self.loaders.train.n

    def elapsed(self):
        """Seconds of training, with those before a resume."""
        return time.perf_counter() - self.start

    @contextmanager
    def open(self, check_lock):
        """Its folder and checkpointer, in the main process. A run that is stopped is saved first."""
        with self.open_folder(check_lock) if self.dist.is_main else nullcontext():
            try:
                self.check_shared_folder()
                yield
            except StopRequested as stop:  # torchrun kills all processes once one has exited
                if self.state.step:
                    self.save()
                self.run_in_main(self.save_stopped, stop)
                raise StopRequested from None

    def check_shared_folder(self):
        """With FSDP all processes write checkpoints: to where the main one has its folder."""
        if self.dist.parallel != "fsdp":
            return
        folder = Path(self.dist.broadcast(str(self.folder or ""), self.precision.device))
        if not folder.is_dir():
            raise ValueError(
                f"process {self.dist.rank} has no {folder}; parallel=fsdp needs a shared disk"
            )
        self.checkpoints = folder / "checkpoints"

    @contextmanager
    def open_folder(self, check_lock):
        with open_run_folder(self, check_lock) as (self.folder, check_lock, write_metadata):
            earlier = (row.get("seconds", 0) for row in rows(self.folder / "metrics.jsonl"))
            self.start = time.perf_counter() - max(
                (s for s in earlier if s > 0), default=0
            )  # NaN is not
            names, keep = ("metrics.jsonl", "samples.jsonl"), self.config.checkpoint.keep
            self.logs = [JsonlLog(self.folder / name, check_lock) for name in names]
            options = keep, self.logs, check_lock, write_metadata
            self.checkpointer = AsyncCheckpointer(self.folder / "checkpoints", *options)
            self.checkpointer.saved = self.state.step if self.stored else None
            try:
                yield
                self.checkpointer.poll(wait=True)
            finally:
                self.checkpointer.close()
            if self.checkpointer.failures:
                raise DiskError(
                    f"the last checkpoint could not be saved; earlier ones are in {self.folder}"
                )

    def save_stopped(self, signal):
        command = f"python train.py name={self.config.name or self.folder.name} resume=true"
        initial = f" init_from={self.config.init_from}" if self.config.init_from else ""
        message = f"stopped by {signal} before the first step. To start again: {command}{initial}"
        if step := self.state.step:
            self.checkpointer.poll(wait=True)
            message = f"stopped by {signal} after step {step} (saved). To resume: {command}"
        if self.checkpointer.failures:
            message = (
                f"stopped by {signal}, and step {step} could not be saved. To resume: {command}"
            )
            raise DiskError(message) from None
        print(message, file=sys.stderr)

    @contextmanager
    def error_context(self, step):
        """Name the step and its examples in an error."""
        saved = f"earlier checkpoints are in {self.folder}; " if self.folder else ""
        try:
            yield
        except NonFiniteError as error:
            ids = np.array2string(
                self.loaders.train.example_ids(step), np.inf, threshold=64, separator=", "
            )
            message = f"{error}, on training {self.examples} {ids}; the weights were not updated"
            raise NonFiniteError(
                f"step {step + 1}: {message}; {saved}try a lower optimizer.lr"
            ) from None
        except torch.OutOfMemoryError:
            n, peak = self.cost.micro_batch_size, filesize(torch.cuda.max_memory_allocated())
            message = f"out of memory with micro-batches of {n} (peak {peak})"
            raise MemoryError(
                f"step {step + 1}: {message}; {saved}lower train.micro_batch_size"
            ) from None

    def advance(self, metrics):
        """Count a finished step, and report checkpoints that failed meanwhile."""
        self.state.step += 1
        self.state.skipped_steps += metrics.skipped
        if self.checkpointer:
            self.checkpointer.poll()

    def flags(self):
        """Whether train.minutes have passed, and which signals have arrived."""
        minutes = self.config.train.minutes
        late = self.dist.is_main and minutes is not None and self.elapsed() >= 60 * minutes
        return [late, *stop_flags()]

    def ends_here(self, flags):
        """Whether the flags of any process end the run. Raises StopRequested after a signal."""
        late, *stops = flags
        check_stop(stops)
        if not late:
            return False
        if self.dist.is_main and self.state.step < self.steps:
            minutes = self.config.train.minutes
            print(
                f"reached train.minutes={minutes:g} at step {self.state.step:,} of {self.steps:,}"
            )
        self.steps = self.state.step
        return True

    def run_in_main(self, function, *args):
        return self.dist.run_slow(partial(function, *args), self.precision.device, only_main=True)

    def save(self, best=False):
        """Once per step, however often it is called."""
        start = time.perf_counter()
        written = self.write_parts() if self.dist.parallel == "fsdp" else None
        self.run_in_main(self.save_in_main, best, written)
        if self.dist.is_main:
            self.checkpointer.seconds += time.perf_counter() - start

    def write_parts(self):
        """Each process writes its parts of all tensors into the draft of a checkpoint. Returns the sum of the
        bytes, and the errno of a process that failed, or 0; None if the step has been saved."""
        device, draft = self.precision.device, draft_dir(self.checkpoints, self.state.step)
        is_new = self.run_in_main(lambda: self.checkpointer.prepare(self.state.step))
        [is_new] = self.dist.all_reduce_sum(bool(is_new), device=device)

        def write():
            try:
                for folder in (self.checkpoints, draft):
                    folder.mkdir(exist_ok=True)
                files = {
                    draft / f"{name}.safetensors": part for name, part in self.tensors().items()
                }
                return sum(
                    write_parts(path, part, *self.dist.share) for path, part in files.items()
                ), 0
            except OSError as error:
                return 0, error.errno or errno.EIO

        if is_new:
            total, code = self.dist.run_slow(write, device)
            [total] = self.dist.all_reduce_sum(total, device=device)
            return int(total), int(self.dist.all_reduce_max(code, device))

    def save_in_main(self, best, written):
        state = {"format": FORMAT, **asdict(self.state), "total_steps": self.steps}
        state |= {
            "stop_criteria": self.stop_criteria,
            "micro_batch_size": self.cost.micro_batch_size,
        }
        state |= {"scaler": self.scaler.state_dict(), "dataset_key": self.loaders.name}
        self.checkpointer.save(state, self.tensors, best, written)

    def tensors(self):
        return {"model": model_tensors(self.model), "optimizer": self.optimizer.tensors()}
