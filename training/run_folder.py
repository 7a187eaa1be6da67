"""Run folder: its name, its lock, and what is written or cleaned up in it before the first step."""

import json
import os
import re
import shutil
import socket
import time
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from itertools import count

from filelock import lock_descriptor

from configs.cli import print, warn
from configs.errors import CheckpointError, DiskError, RunLockedError
from data import disk
from model.checkpoint import save as checkpoint
from model.checkpoint.files import RUNS_DIR, read_json
from training.distributed import is_main_rank
from training.monitor.metrics import truncate_rows

NAME = re.compile(r"(sweep-[\w.-]+/)?\w[\w.-]{0,119}")  # the runs of a sweep are in its folder


@contextmanager
def lock_run(folder):
    """Lock the folder for this process. Yields check_lock(), which raises once another run has its name."""
    path = folder / "lock"
    with os.fdopen(disk.open_plain(path, 0o600)) as file:
        try:
            if not lock_descriptor(file.fileno(), blocking=False):
                raise RunLockedError(
                    f"{folder} is in use by {owner_of(folder)}; wait for it, or stop it"
                )
        except OSError as error:
            warn(f"{folder} cannot be locked ({error.strerror}); do not start a second run in it")
        start = time.strftime("%Y-%m-%d %H:%M:%S %z")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": start}
        disk.atomic_write(folder / "owner.json", json.dumps(owner))

        def check_lock():
            with suppress(FileNotFoundError):  # a missing folder is up to the writes, which fail
                if not os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                    message = f"{folder} was deleted and is now used by {owner_of(folder)}"
                    raise RunLockedError(f"{message}; this run has ended")

        yield check_lock


def owner_of(folder):
    """The process that has locked it, as far as it is known."""
    with suppress(CheckpointError, KeyError, TypeError):
        owner = read_json(folder / "owner.json")
        return f"process {owner['pid']} on {owner['host']}, started {owner['start']}"
    return "another process"


def lock_if_resuming(config):
    """Lock a run that is resumed, before its checkpoint is read: check_lock(), or None for a new run."""
    resumes = (
        config.resume
        and not config.dry_run
        and is_main_rank()
        and (RUNS_DIR / config.name).is_dir()
    )
    return lock_run(RUNS_DIR / config.name) if resumes else nullcontext()


def check_name(name, resume=False):
    if name is not None and not NAME.fullmatch(name):
        rule = "use up to 120 letters, digits, '_', '.' and '-', the first neither '.' nor '-'"
        raise ValueError(f"name is {name!r}; {rule}")
    if name and not resume and (RUNS_DIR / name).exists():
        resume = "true" if (RUNS_DIR / name / "config.yaml").exists() else "auto"
        hint = f"add resume={resume} to continue it, or change name="
        raise ValueError(f"{RUNS_DIR / name} already exists; {hint}")


@contextmanager
def open_run_folder(run, check_lock):
    """(folder of a new or resumed run, check_lock and write_metadata of it), for the main process alone."""
    check_disk_space(run)
    folder, resume, step = RUNS_DIR / str(run.config.name), run.config.resume, run.state.step
    environment = checkpoint.environment(run.precision)
    is_new = not check_lock or not folder.is_dir()
    folder = new_folder(run.config) if is_new else folder
    with lock_run(folder) if is_new else nullcontext(check_lock) as check_lock:
        checkpoint.clean_up(folder / "checkpoints", step)
        truncate_rows(folder / "metrics.jsonl", lambda row: row["step"] < step + ("loss" in row))
        truncate_rows(folder / "samples.jsonl", lambda row: row["step"] < step)
        metadata = run.config, run.overrides, run.loaders.tokenizer, environment
        write_metadata = partial(checkpoint.write_metadata, folder, *metadata)
        write_metadata()
        if run.stored and step < run.steps:
            print(f"resuming {folder} from step {step}")
        elif run.stored:
            hint = "raise train.steps, tokens, epochs or minutes to continue it"
            print(f"{folder} is finished, all {run.steps} steps are done; {hint}")
        elif resume:
            reason = (
                f"there is no run {folder} yet" if is_new else f"{folder} has no checkpoint yet"
            )
            print(f"{reason}; starting at step 0")
        yield folder, check_lock, write_metadata


def check_disk_space(run):
    """There must be room for checkpoint.keep checkpoints, the best, and one being written."""
    size = sum(t.nbytes for t in run.tensors()["model"].values()) + run.cost.optimizer_bytes
    existing = (RUNS_DIR / str(run.config.name) / "checkpoints").glob("step-*/*.safetensors")
    needed = size * (run.config.checkpoint.keep + 2) - sum(path.stat().st_size for path in existing)
    place = next(
        path for path in (RUNS_DIR.absolute(), *RUNS_DIR.absolute().parents) if path.exists()
    )
    free = shutil.disk_usage(place).free
    if needed > free:
        sizes = f"need {disk.filesize(needed)} and {place} has {disk.filesize(free)} left"
        raise DiskError(
            f"the checkpoints of this run {sizes}; free some space, or lower checkpoint.keep"
        )


def new_folder(config):
    """Create the folder; without a name=, one of date, time and model that no other run has."""
    stem = config.name or f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.model.kind}"
    for n in count(1):
        folder = RUNS_DIR / (stem if n == 1 else f"{stem}_{n}")
        try:
            folder.mkdir(parents=True)
            for parent in (folder.parent, RUNS_DIR, RUNS_DIR.parent):
                disk.sync_folder(parent)
            return folder
        except FileExistsError:
            if config.resume:  # by which another process has just started it
                raise RunLockedError(
                    f"{folder} is in use by {owner_of(folder)}; wait for it"
                ) from None
            check_name(config.name)
