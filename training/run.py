"""Run: what train.py has built, and its progress."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from configs.schema import Config
from data.corpus import Loaders
from training.distributed import World
from training.ema import EMA


@dataclass
class TrainState:
    """The progress of a run and its best loss: state.json."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training and evaluation, until the last step began
    best_val_loss: float = math.inf
    best_step: int = 0
    evals_since_best: int = 0
    micro_batch_size: int = 0  # rounding and dropout depend on it; on a GPU, a resumed run keeps it
    dataset: str = ""  # its content_hash, which must not change

    def record(self, val_loss: float) -> bool:
        """Record the result of an evaluation, and return whether it is the best so far."""
        # or the best step itself, again: fine-tuning that was killed after step 0 evaluates it anew
        is_best = val_loss < self.best_val_loss or self.step == self.best_step
        self.evals_since_best += 1
        if is_best:
            self.evals_since_best = 0
            self.best_val_loss = val_loss
            self.best_step = self.step
        return is_best


class Run(NamedTuple):
    config: Config
    data: Loaders
    world: World
    loss_module: Any  # a LossModule, not wrapped by DDP; if it is compiled, eager in eval mode
    optimizers: list[Optimizer]
    ema: EMA | None
    state: TrainState

    @property
    def model(self) -> Any:
        return self.loss_module.model

    @contextmanager
    def evaluated_weights(self, *others: Any) -> Iterator[ExitStack]:
        """A context without gradients in which the model has the weights to evaluate. Usually these
        are its own, but a schedule-free optimizer (one with a swap()) exchanges them for those that
        it trains. others: more that may have a swap(), such as the EMA, or None."""
        with torch.no_grad(), ExitStack() as stack:
            for owner in (*self.optimizers, *others):
                if hasattr(owner, "swap"):
                    owner.swap()
                    stack.callback(owner.swap)
            yield stack

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context without gradients, in eval mode and in the run's precision, with averaged
        weights if there are any. All processes have to enter it."""
        module = self.loss_module
        with self.evaluated_weights(self.ema) as stack:
            module.eval()
            stack.callback(module.train)
            if self.world.parallel == "fsdp":  # it gathers weights by itself only for module(...)
                module.unshard()
                stack.callback(module.reshard)
            with self.world.precision.autocast():
                yield
