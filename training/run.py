"""Run: all that belongs to one training, and the folder that keeps it."""

import json
import platform
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import torch
from omegaconf import OmegaConf

from training import checkpoint

NAME = re.compile(r"\w[\w.-]*")
MICRO_TOKENS = 1 << 14  # tokens whose activations are held at once on a CPU


class Run:
    def __init__(self, config, ranks, precision, streams, model, optimizer, schedule):
        self.config, self.ranks, self.precision, self.streams = config, ranks, precision, streams
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.folder = None  # until it begins
        self.check()

    @property
    def micro_batch(self):
        """Rows at a time: as asked for, or as many of this process's rows as stay within MICRO_TOKENS."""
        rows, asked = self.config.train.batch_size // self.ranks.world, self.config.train.micro_batch
        if asked is not None:
            return asked
        fitting = max(1, MICRO_TOKENS // self.config.model.context)
        return max(n for n in range(1, rows + 1) if rows % n == 0 and n <= fitting)

    @property
    def tokens_per_step(self):
        return self.config.train.batch_size * self.config.model.context

    @property
    def bytes_per_token(self):
        """Of validation, where every token of it is asked for."""
        part = self.streams.validation.part
        return part.n_bytes / part.n_tokens if self.config.objective["kind"] == "next_token" else None

    def check(self):
        size, world, asked = self.config.train.batch_size, self.ranks.world, self.config.train.micro_batch
        if size % world:
            raise ValueError(f"train.batch_size is {size} and does not divide among {world} processes")
        if asked is not None and (asked < 1 or size // world % asked):
            raise ValueError(
                f"train.micro_batch is {asked}; expected a divisor of {size // world}, the rows of a process"
            )

    def begin(self):
        """Make the folder, and write down what the run is."""
        self.folder = new_folder(self.config)
        OmegaConf.save(OmegaConf.create(asdict(self.config)), self.folder / "config.yaml")
        state = self.streams.tokenizer.state()
        (self.folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
        said = [f"python {platform.python_version()}, torch {torch.__version__}", platform.platform()]
        said.append(f"{self.precision.device}, {self.precision.dtype}: {self.precision.reason}")
        (self.folder / "environment.txt").write_text("\n".join(said) + "\n", encoding="utf-8")

    def save(self, step):
        if self.ranks.first:
            folder = self.folder / "checkpoints"
            checkpoint.save(folder, self.model, self.optimizer, {"format": 1, "step": step})
            checkpoint.keep_newest(folder, self.config.checkpoint.keep)

    def plan(self):
        """What is about to happen, before the first step."""
        config, train = self.config, self.streams.train
        parameters = sum(p.numel() for p in self.model.parameters())
        steps, dtype = config.train.steps, str(self.precision.dtype).removeprefix("torch.")
        epochs = steps * config.train.batch_size / train.n
        vocabulary = self.streams.tokenizer.vocab_size
        return "\n".join(
            [
                f"folder      {self.folder}",
                f"device      {self.precision.device}, {dtype}: {self.precision.reason}",
                f"model       {config.model.kind}, {parameters:,} parameters",
                f"data        {train.part.n_tokens:,} tokens of {vocabulary:,} words",
                f"training    {steps:,} steps of {self.tokens_per_step:,} tokens, {epochs:.2f} epochs",
            ]
        )


def new_folder(config):
    """runs/<name>, made for this run alone."""
    if config.name is not None and not NAME.fullmatch(config.name):
        raise ValueError(f"name is {config.name!r}; use letters, digits, '.', '_' and '-'")
    wanted = config.name or f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.model.kind}"
    for name in (wanted, *(f"{wanted}_{n}" for n in range(2, 1000))):
        folder = Path("runs") / name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if config.name:
                raise ValueError(f"{folder} exists already; choose another name=") from None
        else:
            return folder
    raise ValueError(f"runs/{wanted} and a thousand like it exist; choose a name=")
