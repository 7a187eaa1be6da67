"""Checkpointer: saves a run in a thread, while training continues."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rich.filesize import decimal

from configs.cli import warn
from configs.explain import explain
from data.disk import sync_and_hash
from model.frozen import keep_frozen
from model.runs import list_checkpoints
from model.save import mark_best, prune, write_checkpoint, write_metadata
from model.weights import Tensors, frozen_tensors, model_tensors
from training.checks import unchanging
from training.fsdp import whole
from training.optimizer import state_tensors
from training.run import Run

MAX_FAILURES = 3  # in a row; then the run ends


class Checkpointer:
    """Saves checkpoints: begin() first, then save(), and finish() at the end. A step waits only for
    the copy, and for the previous checkpoint if that is still being written."""

    def __init__(self, folder: Path, run: Run):
        self.folder = folder
        self.run = run
        self.constants: list = []  # what no step may change: save() compares it
        self.executor = ThreadPoolExecutor(1, "checkpointer")
        self.pending: Future[None] | None = None  # the last write()
        self.unsaved: dict[int, tuple] = {}  # {step: (copies by file, state)}, oldest first
        self.saved_step = -1  # restore() sets it, too: no step is saved twice
        self.failures = 0  # in a row

    def begin(self, origin: dict, environment: str, is_resumed: bool) -> None:
        """Write what the run needs besides its checkpoints, after a check that these will fit on
        the disk. All processes call it: each has a part of a sharded tensor."""
        self.constants = unchanging(self.run, self.tensors())
        frozen = {} if is_resumed else self.copied(frozen_tensors(self.run.model))
        if not self.run.world.is_main:
            return
        self.check_disk_space(frozen)
        if frozen:
            origin = origin | {"frozen": keep_frozen(self.folder, frozen)}
        tokenizer = self.run.data.tokenizer
        write_metadata(self.folder, self.run.config, origin, tokenizer, environment)

    def check_disk_space(self, frozen: Tensors) -> None:
        """Refuse a disk without room for the checkpoints that are kept (at most ten of them), the
        best, one being written, and the frozen weights."""
        size = sum(t.nbytes for named in self.tensors().values() for t in named.values())
        expected = min(self.run.config.checkpoint.keep, 10) + 2
        existing = len(list_checkpoints(self.folder))
        needed = size * max(1, expected - existing)
        needed += sum(tensor.nbytes for tensor in frozen.values())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise OSError(
                f"the checkpoints of this run need {decimal(needed)} and the disk has "
                f"{decimal(free)} left; free some space, or lower checkpoint.keep"
            )

    def save(self) -> None:
        """Save the last step, unless it is saved already. All processes call it: each has a part of
        a sharded tensor."""
        state = self.run.state
        world = self.run.world
        if state.step == self.saved_step:
            return
        self.wait()
        world.wait()  # for the main process, which may have waited for a slow disk
        with self.run.evaluated_weights():  # a schedule-free optimizer trains others
            tensors = self.tensors()
            if unchanging(self.run, tensors) != self.constants:
                raise ValueError(
                    "a checkpoint would not hold what a step has changed: no frozen parameter may "
                    "change, and an optimizer declares all its state, as tensors, in start_state"
                )
            copies = {file: self.copied(named) for file, named in tensors.items()}
        self.saved_step = state.step
        if world.is_main:
            plain = vars(state) | {"scaler": world.scaler.state_dict()}
            # the thread is idle: what is unsaved has failed; only the best step is tried again
            failed = {step: old for step, old in self.unsaved.items() if step == state.best_step}
            self.unsaved = failed | {state.step: (copies, plain)}
            self.pending = self.executor.submit(self.write)

    def tensors(self) -> dict[str, Tensors]:
        """All that a checkpoint holds: {file: {name: tensor}}."""
        tensors = {
            "model": model_tensors(self.run.model),
            "optimizer": state_tensors(self.run.model, self.run.optimizers),
            "ema": self.run.ema.average if self.run.ema else {},
        }
        return {file: named for file, named in tensors.items() if named}

    def copied(self, tensors: Tensors) -> Tensors:
        """Copies of whole tensors, on the host of the main process."""
        world = self.run.world
        copies = {}
        for name, tensor in tensors.items():
            if world.parallel == "fsdp":
                tensor = whole(tensor)
            if world.is_main:
                copies[name] = tensor.to("cpu", copy=True).contiguous()
        return copies

    def write(self) -> None:
        """In the thread: write what is unsaved, until one fails."""
        for step, (tensors, state) in list(self.unsaved.items()):
            # log rows reach the disk first: a run that resumes here will not write them again
            for log in self.folder.glob("*.jsonl"):
                sync_and_hash(log)
            write_checkpoint(self.folder, step, tensors, state)
            if step == state["best_step"]:
                mark_best(self.folder, step)
            prune(self.folder, self.run.config.checkpoint.keep)
            del self.unsaved[step]

    def wait(self, max_failures: int = MAX_FAILURES) -> None:
        """Wait for the checkpoint that is being written. A failure is a warning; several in a row
        end the run."""
        if self.pending is None:
            return
        try:
            self.pending.result()
            self.failures = 0
        except OSError as error:
            self.failures += 1
            if self.failures >= max_failures:
                raise
            warn(f"a checkpoint could not be saved ({explain(error)[1]}); the run continues")

    def finish(self) -> None:
        """Save the last step; a failure is an error here."""
        self.save()
        self.wait(max_failures=1)
        self.run.world.wait()
