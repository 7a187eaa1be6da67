"""Weights & Biases: the same rows, sent by a thread so that no step waits. A failure costs one warning."""

import queue
import sys
import threading
import uuid

FLUSH_TIMEOUT = 20.0  # seconds to wait at the end of a run


class WandbLogger:
    def __init__(self, settings, folder, config):
        self.settings, self.folder, self.config = settings, folder, config
        self.pending = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.worker, daemon=True)
        self.thread.start()

    def log(self, step, row=None, sample=None):
        self.pending.put((step, row, sample))

    def close(self):
        self.pending.put(None)
        self.thread.join(FLUSH_TIMEOUT)
        if self.thread.is_alive():
            warn("it does not respond; metrics.jsonl is complete")

    def worker(self):
        try:
            import wandb

            run, samples = self.init(), []
            while (entry := self.pending.get()) is not None:
                step, row, sample = entry
                if row:
                    run.log(row, step=step)
                if sample:
                    samples.append([step, *sample.values()])
                    run.log({"samples": wandb.Table(columns=["step", *sample], data=samples)}, step=step)
            run.finish()
        except Exception as error:  # whatever the service does, the run continues
            warn(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def init(self):
        """The id is kept in the folder of the run, so that a resumed run continues the same one."""
        import wandb

        id_file = self.folder / "wandb-id"
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        return wandb.init(
            mode=self.settings.mode,
            project=self.settings.project,
            dir=self.folder.resolve(),  # the service may have another working directory
            name=self.folder.name,
            id=id_file.read_text(),
            resume="allow",
            reinit="create_new",
            config=self.config,
            settings=wandb.Settings(silent=True, console="off", init_timeout=15),
        )


def warn(reason):
    print(f"warning: wandb logging failed ({reason})", file=sys.stderr)
