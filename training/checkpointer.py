"""Saver: a thread writes the checkpoints while the run goes on. What a step waits for is a copy."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from configs.cli import error_message
from configs.errors import CheckpointError, DiskError
from model.checkpoint import save as checkpoint
from model.checkpoint.files import step_dir

MAX_SAVE_FAILURES = 3  # failures in a row, after which a run that cannot be kept ends


class AsyncCheckpointer:
    """At most one checkpoint is on its way. Its failure is told at the next look and does not end the run,
    but several in a row do."""

    def __init__(self, folder, keep):
        self.folder, self.keep = folder, keep
        self.thread, self.flying = ThreadPoolExecutor(1, "saver"), []
        self.saved = None  # the step of the newest checkpoint, written or on its way
        self.failures = 0  # in a row
        self.count, self.seconds = 0, 0.0  # checkpoints, and how long steps waited for them
        self.began = time.perf_counter()

    def save(self, state, tensors, best=False):
        """All of it as it is now: what happens to the tensors later is of no matter."""
        began = time.perf_counter()
        if self.saved == state["step"]:
            self.poll()
        else:
            self.wait()
            copies = {name: cpu_copy(part) for name, part in tensors().items()}
            self.saved = state["step"]
            self.count += 1
            self.flying.append(self.thread.submit(checkpoint.save, self.folder, copies, state))
        self.flying.append(self.thread.submit(self.tidy, state["step"] if best else None))
        self.seconds += time.perf_counter() - began

    def tidy(self, best):
        """In the thread, after what was to be written is there, or is known to be missing."""
        if best is not None and (self.folder / step_dir(best)).is_dir():
            checkpoint.write_pointer(self.folder, "best", best)
        checkpoint.prune(self.folder, self.keep)

    def poll(self):
        """Hear what has come of checkpoints on their way."""
        while self.flying and self.flying[0].done():
            self.settle(self.flying.pop(0))

    def wait(self):
        while self.flying:
            self.settle(self.flying.pop(0))

    def settle(self, future):
        try:
            future.result()
        except (OSError, CheckpointError) as error:
            self.fail(error_message(error))
        else:
            self.failures = 0 if self.saved is not None else self.failures

    def fail(self, reason):
        if self.saved is None:  # of this checkpoint it is known
            return
        self.saved = None
        self.failures += 1
        if self.failures >= MAX_SAVE_FAILURES:
            raise DiskError(
                f"{MAX_SAVE_FAILURES} checkpoints in a row could not be saved ({reason}); those of before are "
                "untouched, and resume=true goes on from the newest"
            )
        if self.failures == 1:
            print(f"warning: a checkpoint could not be saved ({reason}); the run goes on", file=sys.stderr)

    def cost(self):
        """What checkpoints have taken of the run's time, in words."""
        share = self.seconds / (time.perf_counter() - self.began)
        return f"{self.count} checkpoints; training blocked for {self.seconds:.2f} s ({share:.1%})"

    def close(self):
        self.thread.shutdown()


def cpu_copy(tensors):
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
