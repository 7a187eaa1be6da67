"""Holder: the one process that may write into a run's folder. Its lock ends with it, however it ends."""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import sys
import time
from contextlib import contextmanager, nullcontext
from datetime import datetime

from configs.errors import CheckpointError, DiskError, RunLockedError
from data import disk
from model.checkpoint import save as checkpoint
from model.checkpoint.files import read_json
from training.distributed import is_main_rank
from training.monitor.metrics import truncate_rows


@contextmanager
def lock_run(folder):
    """The folder, for this process alone. The lock is opened once: closing any handle of it would free it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(handle, folder)
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        owner["start"] = time.strftime("%Y-%m-%d %H:%M:%S %z")
        (folder / "owner.json").write_text(json.dumps(owner), encoding="utf-8")
        yield
    finally:
        os.close(handle)


def lock_if_resuming(config, home):
    """The folder of a run that goes on is held from before it is read."""
    goes_on = config.resume and not config.dry_run and is_main_rank() and (home / config.name).is_dir()
    return lock_run(home / config.name) if goes_on else nullcontext()


def lock(handle, folder):
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            print(f"warning: {folder} cannot be locked ({error.strerror}); start no second run in it",
                  file=sys.stderr)  # fmt: skip
            return
        raise RunLockedError(f"{folder} is in use by {owner_of(folder)}; wait for it, or stop it") from None


def owner_of(folder):
    try:
        owner = read_json(folder / "owner.json")
        return f"process {owner['pid']} on {owner['host']}, started {owner['start']}"
    except (CheckpointError, KeyError, TypeError):
        return "another process"


NAME = re.compile(r"(sweep-[\w.-]+/)?\w[\w.-]*")  # a run of a sweep lies in its folder


def check_name(name, runs_dir, resume=False):
    if name is None:
        return
    if not NAME.fullmatch(name):
        raise ValueError(f"name is {name!r}; use letters, digits, '.', '_' and '-'")
    if (runs_dir / name).exists() and not resume:
        raise ValueError(
            f"{runs_dir / name} already exists; add resume=true to continue it, or choose another name="
        )


@contextmanager
def open_run_folder(run, home):
    """The folder of this run alone, with all it needs to be understood later."""
    check_disk_space(run, home)
    folder, again = home / str(run.config.name), run.config.resume
    metadata = run.config, run.overrides, run.loaders.tokenizer, checkpoint.environment(run.precision)
    if not (again and folder.is_dir()):
        folder = new_folder(run.config, home)
        if again:
            print(f"there is no run {folder} yet; it begins at step 0")
        with lock_run(folder):
            checkpoint.write_metadata(folder, *metadata)
            yield folder
        return
    # who resumes holds it already
    step = run.state.step
    checkpoint.clean_up(folder / "checkpoints", step)
    truncate_rows(
        folder / "metrics.jsonl", lambda row: row["step"] <= step if "loss" in row else row["step"] < step
    )
    truncate_rows(folder / "samples.jsonl", lambda row: row["step"] < step)
    checkpoint.write_metadata(folder, *metadata)
    print(f"{folder} {resume_message(run)}")
    yield folder


def resume_message(run):
    if not run.stored:
        return "has no checkpoint yet; it begins at step 0"
    if run.state.step < run.steps:
        return f"goes on from step {run.state.step}"
    return f"is finished, all {run.steps} steps are done; more train.steps, tokens or minutes would go on"


def check_disk_space(run, home):
    """For what the run will keep: so many checkpoints, the best, one in the making."""
    one = sum(t.nbytes for t in run.tensors()["model"].values()) + run.cost.optimizer_bytes
    there = home / str(run.config.name) / "checkpoints"
    kept = sum(path.stat().st_size for path in there.glob("step-*/*.safetensors"))
    wanted = one * (run.config.checkpoint.keep + 2) - kept
    place = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if wanted > free:
        raise DiskError(
            f"the checkpoints of this run will need {disk.filesize(wanted)} and {place} has "
            f"{disk.filesize(free)} left; free some space, or lower checkpoint.keep"
        )


def new_folder(config, home):
    """<home>/<name>, made for this run alone."""
    check_name(config.name, home, config.resume)
    wanted = config.name or f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.model.kind}"
    for name in (wanted, *(f"{wanted}_{n}" for n in range(2, 1000))):
        try:
            (home / name).mkdir(parents=True)
        except FileExistsError:
            check_name(config.name, home, config.resume)
        else:
            return home / name
    raise ValueError(f"{home / wanted} and a thousand like it exist; choose a name=")
