"""Checkpointer: what a run saves, written by a thread while training continues."""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from configs.cli import explain, warn
from configs.errors import CheckpointError, DataError
from data.disk import sync_file
from model import checkpoint
from training.distributed import World, like, whole
from training.optimizer import state_tensors

MAX_FAILURES = 3  # in a row, then the run ends


@dataclass
class TrainState:
    """How far a run has come, and how well: state.json."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training and evaluation, until the last step
    best_val_loss: float = math.inf
    best_step: int = 0
    evals_since_best: int = 0
    micro_batch_size: int = 0  # a resumed run keeps it: rounding and dropout depend on it
    dataset: str = ""  # its content_hash, which must not change

    def is_out_of(self, patience: int | None) -> bool:
        """Early stopping."""
        return patience is not None and self.evals_since_best >= patience

    def record(self, val_loss: float) -> bool:
        """Note the result of an evaluation; whether it is the best so far."""
        # a fine-tuning that was killed after step 0 evaluates it again when it is resumed
        is_repeated = (val_loss, self.step) == (self.best_val_loss, self.best_step)
        is_best = val_loss < self.best_val_loss or is_repeated
        self.evals_since_best = 0 if is_best else self.evals_since_best + 1
        if is_best:
            self.best_val_loss = val_loss
            self.best_step = self.step
        return is_best


class Checkpointer:
    """A step waits only for the copy, and for the checkpoint before it if that is still being
    written."""

    def __init__(
        self,
        run: Path,
        keep: int,
        world: World,
        model: nn.Module,
        optimizers: list[Optimizer],
        **others: Any,
    ) -> None:
        """others: objects that have a state_dict() of tensors, always the same ones."""
        self.run = run
        self.keep = keep
        self.world = world
        self.model = model
        self.optimizers = optimizers
        self.others = others
        self.form = self.form_of(self.tensors())
        self.thread = ThreadPoolExecutor(1, "checkpointer")
        self.pending: Future[None] | None = None
        self.saved = -1  # the newest step
        self.failures = 0  # in a row

    def save(self, state: TrainState, best: bool = False) -> None:
        """Once per step. All processes call it: each has a part of a sharded tensor."""
        if state.step == self.saved:
            return
        self.wait()
        self.world.wait()  # a slow disk of the main process is not a lost process
        tensors = self.tensors()
        if self.form_of(tensors) != self.form:
            hint = "an optimizer names all its state, of tensors, in start_state"
            raise ValueError(f"a checkpoint would not hold what a step has changed: {hint}")
        copies = {file: self.copied(named) for file, named in tensors.items()}
        self.saved = state.step
        if self.world.is_main:
            plain = asdict(state) | {"scaler": self.world.scaler.state_dict()}
            self.pending = self.thread.submit(self.write, state.step, copies, plain, best)

    def tensors(self) -> dict[str, checkpoint.Tensors]:
        """{file: {name: tensor}} of all that a checkpoint holds."""
        tensors = {
            "model": checkpoint.model_tensors(self.model),
            "optimizer": state_tensors(self.model, self.optimizers),
        }
        tensors |= {name: other.state_dict() for name, other in self.others.items()}
        return {file: named for file, named in tensors.items() if named}

    def form_of(self, tensors: dict[str, checkpoint.Tensors]) -> list[Any]:
        """What no step may change: the names of tensors, and options of optimizers."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        options = [
            {k: v for k, v in group.items() if k not in ("params", "lr")} for group in groups
        ]
        return [{file: [*named] for file, named in tensors.items()}, options]

    def copied(self, tensors: checkpoint.Tensors) -> checkpoint.Tensors:
        """Whole and on the host; of the main process."""
        copies = {}
        for name, tensor in tensors.items():
            gathered = whole(tensor.detach())
            if self.world.is_main:
                copies[name] = gathered.to("cpu", copy=True).contiguous()
        return copies

    def write(self, step: int, tensors: dict, state: dict[str, Any], best: bool) -> None:
        for log in self.run.glob("*.jsonl"):  # a run that resumes here does not repeat their rows
            sync_file(log)
        checkpoint.save(self.run, step, tensors, state)
        if best:
            checkpoint.mark_best(self.run, step)
        checkpoint.prune(self.run, self.keep)

    def wait(self, max_failures: int = MAX_FAILURES) -> None:
        """For the checkpoint that is being written. A failure is a warning; several in a row end
        the run."""
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        try:
            pending.result()
            self.failures = 0
        except OSError as error:
            self.failures += 1
            self.saved = -1
            if self.failures >= max_failures:
                raise
            warn(f"a checkpoint could not be saved ({explain(error)[1]}); the run continues")

    def finish(self, state: TrainState) -> None:
        """Save the last step; here a failure is an error."""
        self.save(state)
        self.wait(max_failures=1)
        self.world.wait()

    def close(self) -> None:
        """Whatever ends the run, a checkpoint that is being written is completed."""
        self.thread.shutdown()

    def nbytes(self) -> int:
        """Of a checkpoint."""
        return sum(t.nbytes for tensors in self.tensors().values() for t in tensors.values())

    def load(self, place: Path, dataset: str) -> TrainState:
        """Weights, optimizers and scaler of a checkpoint, tensor by tensor."""
        stored = checkpoint.read_state(place)
        names = [field.name for field in fields(TrainState)]
        if not {*names, "scaler"} <= stored.keys():
            hint = f"init_from={self.run} trains from it"
            raise CheckpointError(f"{self.run} was imported and has not been trained; {hint}")
        state = TrainState(**{name: stored[name] for name in names})
        if state.dataset != dataset:
            changed = "the text has changed, or is that of another data.path"
            raise DataError(f"{changed}, since {self.run} was trained on it; restore it")
        for file, tensors in self.tensors().items():
            for name, tensor in checkpoint.read_tensors(place / f"{file}.safetensors", tensors):
                with torch.no_grad():
                    tensors[name].copy_(like(tensor, tensors[name]))
        if stored["scaler"]:
            self.world.scaler.load_state_dict(stored["scaler"])
        self.saved = state.step
        if self.world.is_main:
            checkpoint.remove_after(self.run, state.step)
        if self.world.is_main and state.best_step == state.step:  # it was stopped before it could
            checkpoint.mark_best(self.run, state.step)
        return state
