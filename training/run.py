"""Run: all that belongs to one training, and the folder that keeps it."""

import json
import math
import platform
import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime

import torch
from omegaconf import OmegaConf

from training import checkpoint
from training.errors import NumbersError
from training.precision import peak
from training.schedule import make_schedule
from training.step import Way

NAME = re.compile(r"\w[\w.-]*")


@dataclass
class Progress:
    """How far a run has come, and how well."""

    step: int = 0
    best: float = math.inf  # loss of validation
    since_best: int = 0  # evaluations

    def judge(self, loss):
        better = loss < self.best
        self.best, self.since_best = (loss, 0) if better else (self.best, self.since_best + 1)

    def out_of(self, patience):
        return patience is not None and self.since_best >= patience


class Run:
    def __init__(self, config, ranks, precision, streams, model, optimizer):
        self.config, self.ranks, self.precision, self.streams = config, ranks, precision, streams
        self.model, self.optimizer, self.scaler = model, optimizer, precision.scaler()
        self.progress = Progress()
        self.folder = None  # until it begins
        self.cost = None  # until it is settled
        self.saved = None  # the step of the newest checkpoint

    def settle(self, cost):
        """What a rehearsal has told decides how long the run is."""
        self.cost, self.steps = cost, length(self, cost)
        self.schedule = make_schedule(self.config.schedule, self.steps) if self.steps else None

    @property
    def way(self):
        micro_batch, clip = self.cost.micro_batch, self.config.train.grad_clip
        return Way(self.optimizer, self.scaler, self.precision, self.ranks, micro_batch, clip)

    @contextmanager
    def naming(self, step):
        """Numbers that go wrong are told with their step and batch."""
        try:
            yield
        except NumbersError as error:
            numbers = ", ".join(map(str, self.streams.train.numbers(step)[:8].tolist()))
            raise NumbersError(
                f"step {step + 1}: {error}, on {self.examples} {numbers} ... of training; nothing of it "
                f"reached the weights, and {self.folder} keeps what was saved; try a lower optimizer.rate"
            ) from None

    @property
    def examples(self):
        return "pairs" if self.config.objective["kind"] == "pairs" else "windows"

    @property
    def tokens_per_step(self):
        return round(self.config.train.batch_size * self.streams.train.tokens_per_example)

    def mfu(self, seconds):
        """The share of what the device could compute that a step of so many seconds did."""
        most = peak(self.precision)
        return None if most is None else self.cost.flops / seconds / most

    def begin(self, home):
        """Make the folder, and write down what the run is."""
        self.folder = new_folder(self.config, home)
        OmegaConf.save(OmegaConf.create(asdict(self.config)), self.folder / "config.yaml")
        state = self.streams.tokenizer.state()
        (self.folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
        said = [f"python {platform.python_version()}, torch {torch.__version__}", platform.platform()]
        said.append(f"{self.precision.device}, {self.precision.dtype}: {self.precision.reason}")
        (self.folder / "environment.txt").write_text("\n".join(said) + "\n", encoding="utf-8")

    def save(self, best=False):
        """Once at a step, however many reasons there are to."""
        if not self.ranks.first:
            return
        folder, step = self.folder / "checkpoints", self.progress.step
        if self.saved != step:
            state = {"format": 1, **asdict(self.progress), "steps": self.steps}
            state |= {"micro_batch": self.cost.micro_batch, "scaler": self.scaler.state_dict()}
            checkpoint.save(folder, self.model, self.optimizer, state)
            self.saved = step
        if best:
            checkpoint.point(folder, "best", step)
        checkpoint.keep_newest(folder, self.config.checkpoint.keep)


def length(run, cost):
    """Steps: those asked for, or as many as make up the tokens or minutes, whichever ends first."""
    train, ends = run.config.train, []
    if train.steps is not None:
        ends.append(train.steps)
    if train.tokens is not None:
        ends.append(math.ceil(train.tokens / run.tokens_per_step))
    if train.minutes is not None:
        # the first process measures for all
        [seconds] = run.ranks.sum(cost.seconds if run.ranks.first else 0.0, device=run.precision.device)
        ends.append(max(1, int(train.minutes * 60 / seconds)))
    return min(ends)


def check_division(config, ranks):
    """The rows of a batch among processes and micro-batches."""
    size, world, asked = config.train.batch_size, ranks.world, config.train.micro_batch
    if size % world:
        raise ValueError(f"train.batch_size is {size} and does not divide among {world} processes")
    if asked != "auto" and size // world % asked:
        raise ValueError(
            f"train.micro_batch is {asked}; expected a divisor of {size // world}, the rows of a process"
        )


def check_name(config, home):
    if config.name is None:
        return
    if not NAME.fullmatch(config.name):
        raise ValueError(f"name is {config.name!r}; use letters, digits, '.', '_' and '-'")
    if (home / config.name).exists():
        raise ValueError(f"{home / config.name} exists already; choose another name=")


def new_folder(config, home):
    """<home>/<name>, made for this run alone."""
    check_name(config, home)
    wanted = config.name or f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.model.kind}"
    for name in (wanted, *(f"{wanted}_{n}" for n in range(2, 1000))):
        try:
            (home / name).mkdir(parents=True)
        except FileExistsError:
            check_name(config, home)
        else:
            return home / name
    raise ValueError(f"{home / wanted} and a thousand like it exist; choose a name=")
