"""Weights & Biases, fed by a thread so that no step waits for it. A failure costs one warning."""

import queue
import threading
import uuid
from dataclasses import asdict

from configs.cli import warn

FLUSH_TIMEOUT = 20.0  # seconds to wait for it at the end of a run


class WandbLogger:
    def __init__(self, config, folder):
        self.pending = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.worker, args=(config, folder), daemon=True)
        self.thread.start()

    def log(self, step, row=None, sample=None):
        self.pending.put((step, row, sample))

    def close(self):
        self.pending.put(None)
        self.thread.join(FLUSH_TIMEOUT)
        if self.thread.is_alive():
            warn("wandb does not respond; metrics.jsonl is complete")

    def worker(self, config, folder):
        id_file, samples = folder / "wandb-id", []
        try:
            import wandb

            if not id_file.exists():
                id_file.write_text(uuid.uuid4().hex)
            settings = wandb.Settings(silent=True, console="off", init_timeout=15)
            # a resumed run continues under the same id; the service may have another working directory
            run = wandb.init(project=config.wandb.project, name=folder.name, id=id_file.read_text(),
                             mode=config.wandb.mode, dir=folder.resolve(), resume="allow",
                             reinit="create_new", config=asdict(config), settings=settings)  # fmt: skip
            for step, row, sample in iter(self.pending.get, None):
                if row:
                    run.log(row, step=step)
                if sample:
                    samples.append([step, *sample.values()])
                    run.log(
                        {"samples": wandb.Table(columns=["step", *sample], data=samples)}, step=step
                    )
            run.finish()
        except Exception as error:  # whatever the service does, the run continues
            reason = str(error).partition("\n")[0]
            warn(f"wandb logging stopped ({type(error).__name__}: {reason})")
