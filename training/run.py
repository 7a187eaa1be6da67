"""Run: what train.py has built, for evaluations, samples and metrics to look at."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from configs.schema import Config
from data.corpus import Loaders
from training.checkpointer import TrainState
from training.distributed import World
from training.ema import EMA
from training.step import LossModule


class Run(NamedTuple):
    config: Config
    data: Loaders
    world: World
    loss_module: LossModule  # neither compiled nor wrapped by DDP
    optimizers: list[Optimizer]
    ema: EMA
    state: TrainState

    @property
    def model(self) -> Any:
        return self.loss_module.model

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In eval mode, with the averaged weights if there are any. Of several processes, all have
        to evaluate."""
        module: Any = self.loss_module
        is_sharded = self.world.parallel == "fsdp"
        module.eval()
        with torch.no_grad(), self.ema.applied():
            if is_sharded:  # FSDP gathers weights by itself only for module(...)
                module.unshard()
            yield
            if is_sharded:
                module.reshard()
        module.train()
