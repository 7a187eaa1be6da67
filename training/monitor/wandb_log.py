"""Remote: the same rows to wandb, from a thread of its own, so that no step waits for it. What goes wrong
there costs one warning; metrics.jsonl is the record."""

import queue
import sys
import threading
import uuid

PATIENCE = 20.0  # seconds that a run waits, at its end, for what is still on its way


class WandbLogger:
    """`offer` rows and samples; a thread brings them to wandb. Its id of the run is kept in the run's folder,
    so that a resumed run goes on as the same one."""

    def __init__(self, settings, folder, config):
        self.settings, self.folder, self.config = settings, folder, config
        self.waiting = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.bring, daemon=True)
        self.thread.start()

    def offer(self, step, row=None, sample=None):
        self.waiting.put((step, row, sample))

    def close(self):
        self.waiting.put(None)
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            warn("it does not answer; what it lacks is in metrics.jsonl")

    def bring(self):
        try:
            run, shown = self.begin(), []
            while (offered := self.waiting.get()) is not None:
                step, row, sample = offered
                if row:
                    run.log(row, step=step)
                if sample:
                    shown.append([step, *sample.values()])
                    run.log({"samples": table(["step", *sample], shown)}, step=step)
            run.finish()
        except Exception as error:  # whatever a service does, the run goes on
            warn(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

    def begin(self):
        import wandb

        kept = self.folder / "wandb-id"
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex)
        return wandb.init(
            mode=self.settings.mode,
            project=self.settings.project,
            dir=self.folder.resolve(),  # its service may stand elsewhere
            name=self.folder.name,
            id=kept.read_text(),
            resume="allow",
            reinit="create_new",
            config=self.config,
            settings=wandb.Settings(silent=True, console="off", init_timeout=15),
        )


def table(columns, rows):
    import wandb

    return wandb.Table(columns=columns, data=rows)


def warn(said):
    print(f"warning: wandb is left out ({said})", file=sys.stderr)
