"""Run: all that belongs to one training, and what it keeps."""

import math
from contextlib import contextmanager
from dataclasses import asdict

import torch

from configs.errors import DiskError, NonFiniteError, StopRequested
from model.checkpoint.files import FORMAT, TrainState
from model.checkpoint.save import model_tensors
from model.precision import peak_flops
from training import run_folder as folders
from training.checkpointer import AsyncCheckpointer
from training.distributed import raise_if_stopped
from training.schedule import make_schedule
from training.step import Way


class Run:
    def __init__(self, config, overrides, dist, precision, loaders, model, optimizer, stored=None):
        self.overrides = overrides
        self.config, self.dist, self.precision, self.loaders = config, dist, precision, loaders
        self.model, self.optimizer, self.scaler = model, optimizer, precision.scaler()
        self.stored = stored  # the checkpoint from which it goes on
        self.state = TrainState()
        self.folder = self.checkpointer = None  # until it begins
        self.cost = None  # until it is settled

    def settle(self, cost):
        """What a rehearsal has told decides how long the run is; a run that goes on has been told before."""
        self.cost, ends = cost, self.ends
        self.steps = length(self, cost)
        if self.stored:
            state = self.stored.state
            self.steps = state.total_steps if state.stop_criteria == ends else self.steps
            self.state = TrainState(**{name: getattr(state, name) for name in asdict(self.state)})
            if self.steps < self.state.step:
                raise ValueError(
                    f"the run has done {self.state.step} steps, and by train.steps, tokens or minutes it "
                    f"would end at {self.steps}; give more, or leave them out"
                )
        self.schedule = make_schedule(self.config.schedule, self.steps) if self.steps else None

    @property
    def ends(self):
        return [self.config.train.steps, self.config.train.tokens, self.config.train.minutes]

    @property
    def way(self):
        micro_batch_size, clip = self.cost.micro_batch_size, self.config.train.grad_clip
        return Way(self.optimizer, self.scaler, self.precision, self.dist, micro_batch_size, clip)

    @contextmanager
    def naming(self, step):
        """What goes wrong is told with its step and batch."""
        try:
            yield
        except NonFiniteError as error:
            numbers = ", ".join(map(str, self.loaders.train.example_ids(step)[:8].tolist()))
            raise NonFiniteError(
                f"step {step + 1}: {error}, on {self.examples} {numbers} ... of training; nothing of it "
                f"reached the weights, and {self.folder} keeps what was saved; try a lower optimizer.lr"
            ) from None
        except torch.OutOfMemoryError:
            held = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
            now, most = (f"{n / 2**30:.1f} GiB" for n in held)
            raise MemoryError(
                f"step {step + 1}: no memory left for micro-batches of {self.cost.micro_batch_size} ({now} held, "
                f"{most} at most); {self.folder} keeps what was saved; lower train.micro_batch_size, or choose a "
                "smaller size="
            ) from None

    def forgets(self, step):
        """Whether this step is the best and its loss is not known: what is saved is judged afterwards."""
        return self.stored is not None and self.stored.is_best and step == self.stored.state.step

    @property
    def examples(self):
        return "pairs" if self.config.objective["kind"] == "pairs" else "windows"

    @property
    def tokens_per_step(self):
        return round(self.config.train.batch_size * self.loaders.train.tokens_per_example)

    def mfu(self, seconds):
        """The share of what the device could compute that a step of so many seconds did."""
        most = peak_flops(self.precision)
        return None if most is None else self.cost.flops / seconds / most

    @contextmanager
    def begun(self, home):
        """Its folder, made or entered again. A run that is stopped is saved first."""
        if not self.dist.is_main:
            try:
                yield
            except StopRequested:
                self.meet()
                raise StopRequested from None  # the first process says it for all
            return
        with folders.open_run_folder(self, home) as self.folder:
            self.checkpointer = AsyncCheckpointer(self.folder / "checkpoints", self.config.checkpoint.keep)
            self.checkpointer.saved = self.state.step if self.stored else None
            try:
                yield
                self.checkpointer.wait()
            except StopRequested as by:
                told = self.stopped(by)
                self.meet()
                raise StopRequested(told) from None
            finally:
                self.checkpointer.close()
            if self.checkpointer.failures:
                raise DiskError(
                    f"the end of the run could not be saved; {self.folder} keeps what was saved before"
                )

    def meet(self):
        """Wait for the other processes: torchrun ends all of them as soon as one has left."""
        self.dist.all_reduce_sum(0, device=self.precision.device)

    def stopped(self, by):
        """Save, and say how to go on."""
        name = self.config.name or self.folder.name
        step, way = self.state.step, f"python train.py name={name} resume=true"
        if not step:
            return f"stopped by {by} before its first step; to begin again: {way}"
        self.save()
        self.checkpointer.wait()
        if self.checkpointer.failures:
            raise DiskError(
                f"stopped by {by}, and step {step} could not be saved; to go on from before: {way}"
            )
        return f"stopped by {by} after step {step}, which is saved; to go on: {way}"

    def advance(self, learned):
        """A step is done; what the thread that saves has met meanwhile is told."""
        self.state.step += 1
        self.state.skipped_steps += learned.skipped
        if self.checkpointer:
            self.checkpointer.poll()
        return self.state.step

    def heed(self):
        """Whether any process was asked to stop is known to all of them between two steps."""
        raise_if_stopped(self.dist, self.precision.device)

    def save(self, best=False):
        """Once at a step, however many reasons there are to."""
        if self.checkpointer:
            self.checkpointer.save(self.state_dict(), self.tensors, best)

    def state_dict(self):
        state = {"format": FORMAT, **asdict(self.state), "total_steps": self.steps, "stop_criteria": self.ends}
        state |= {"micro_batch_size": self.cost.micro_batch_size, "scaler": self.scaler.state_dict()}
        return state | {"dataset_key": self.loaders.name}

    def tensors(self):
        return {"model": model_tensors(self.model), "optimizer": self.optimizer.tensors()}


def length(run, cost):
    """Steps: those asked for, or as many as make up the tokens or minutes, whichever ends first."""
    train, ends = run.config.train, []
    if train.steps is not None:
        ends.append(train.steps)
    if train.tokens is not None:
        ends.append(math.ceil(train.tokens / run.tokens_per_step))
    if train.minutes is not None:
        # the first process measures for all
        [seconds] = run.dist.all_reduce_sum(
            cost.seconds if run.dist.is_main else 0.0, device=run.precision.device
        )
        ends.append(max(1, int(train.minutes * 60 / seconds)))
    return min(ends)


def check_division(config, dist):
    """The rows of a batch among processes and micro-batches."""
    size, world, asked = config.train.batch_size, dist.world_size, config.train.micro_batch_size
    if size % world:
        raise ValueError(f"train.batch_size is {size} and does not divide among {world} processes")
    if asked != "auto" and size // world % asked:
        raise ValueError(
            f"train.micro_batch_size is {asked}; expected a divisor of {size // world}, the rows of a process"
        )
