"""Checkpointer: a thread writes checkpoints while training continues; a step waits only for the copy, and for
the previous checkpoint if it is still being written."""

import time
from concurrent.futures import ThreadPoolExecutor

from configs.cli import explain, warn
from configs.errors import CheckpointError, DiskError
from data import disk
from model.checkpoint import save as checkpoint
from model.checkpoint.files import step_dir

MAX_SAVE_FAILURES = 3  # in a row, then the run ends


class AsyncCheckpointer:
    """One checkpoint at a time. A failure is a warning at the next poll; several in a row end the run."""

    def __init__(self, folder, keep, logs=(), check_lock=lambda: None, write_metadata=lambda: None):
        self.folder, self.keep, self.logs = folder, keep, logs
        self.check_lock, self.write_metadata = check_lock, write_metadata
        self.thread, self.pending = ThreadPoolExecutor(1, "checkpointer"), []
        self.warned = False  # of an old checkpoint that could not be deleted
        self.saved, self.failures = None, 0  # the newest step, even if pending; failures in a row
        self.count, self.seconds = 0, 0.0  # checkpoints, and the time that steps waited for them
        self.start = time.perf_counter()

    def prepare(self, step):
        """Whether a step has yet to be saved; then nothing else is being written."""
        if self.saved == step:
            return False
        self.poll(wait=True)
        self.check_lock()
        return True

    def save(self, state, tensors, best=False, written=None):
        """Copy the tensors now and write them in the background, once per step."""
        if self.saved == state["step"]:
            self.poll()
        else:
            self.poll(wait=True)
            copies = {} if written else tensors()
            for part, named in copies.items():
                copies[part] = {
                    name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()
                }
            self.saved, self.count = state["step"], self.count + 1
            self.pending.append(self.thread.submit(self.write, copies, state, written))
        self.pending.append(self.thread.submit(self.prune, state["step"], best))

    def write(self, copies, state, written):
        """In the thread, which raises RunLockedError once another run has the folder."""
        self.check_lock()
        checkpoint.save(self.folder, copies, state, self.before_rename, written)

    def before_rename(self):
        """Sync the logs: a run that resumes from the checkpoint does not write the rows before it again."""
        for log in self.logs:
            log.write(sync=True)
        disk.sync_folder(self.folder.parent)
        self.check_lock()
        if not all(
            (self.folder.parent / name).exists() for name in ("config.yaml", "tokenizer.json")
        ):
            self.write_metadata()  # the folder was emptied; without them the weights could not be used

    def prune(self, step, best):
        """In the thread, after the checkpoint itself, which may have failed."""
        self.check_lock()
        if best and (self.folder / step_dir(step)).is_dir():
            checkpoint.write_pointer(self.folder, "best", step)
        try:
            checkpoint.prune(self.folder, self.keep, step)
        except (OSError, CheckpointError) as error:
            if not self.warned:
                warn(
                    f"an old checkpoint could not be deleted ({explain(error)[1]}); the run continues"
                )
            self.warned = True

    def poll(self, wait=False):
        while self.pending and (wait or self.pending[0].done()):
            self.take_result(self.pending.pop(0))

    def take_result(self, future):
        try:
            future.result()
        except (OSError, CheckpointError) as error:
            if self.saved is None:  # its failure has been counted
                return
            self.saved, self.failures = None, self.failures + 1
            _, reason = explain(error)
            if self.failures >= MAX_SAVE_FAILURES:
                message = f"{MAX_SAVE_FAILURES} checkpoints in a row could not be saved ({reason})"
                raise DiskError(
                    f"{message}; resume=true continues from the newest before them"
                ) from None
            if self.failures == 1:
                warn(f"a checkpoint could not be saved ({reason}); the run continues")
        else:
            self.failures = 0 if self.saved is not None else self.failures

    def cost(self):
        fraction = self.seconds / (time.perf_counter() - self.start)
        plural = "" if self.count == 1 else "s"
        return f"{self.count} checkpoint{plural}; training blocked for {self.seconds:.2f} s ({fraction:.1%})"

    def close(self):
        self.thread.shutdown()
