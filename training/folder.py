"""Folder: the place of a run, runs/<name>, and what it says of itself before its first step."""

import json
import platform
import re
import shutil
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import torch
from omegaconf import OmegaConf

from data import disk
from training import checkpoint
from training.errors import DiskError
from training.holder import held
from training.monitor.record import cut

NAME = re.compile(r"(sweep-[\w.-]+/)?\w[\w.-]*")  # a run of a sweep lies in its folder


def check_name(config, home):
    if config.name is None:
        return
    if not NAME.fullmatch(str(config.name)):
        raise ValueError(f"name is {config.name!r}; use letters, digits, '.', '_' and '-'")
    if (home / config.name).exists() and not config.resume:
        raise ValueError(
            f"{home / config.name} exists already; go on with it by resume=true, or choose another name="
        )


@contextmanager
def made(run, home):
    """The folder of this run alone, with all it needs to be understood later."""
    check_room(run, home)
    folder, again = home / str(run.config.name), run.config.resume
    said = run.config, run.streams.tokenizer, environment(run.precision)
    if not (again and folder.is_dir()):
        folder = new_folder(run.config, home)
        if again:
            print(f"there is no run {folder} yet; it begins at step 0")
        with held(folder):
            describe(folder, *said)
            yield folder
        return
    # who resumes holds it already
    step = run.progress.step
    checkpoint.sweep(folder / "checkpoints", step)
    cut(folder / "metrics.jsonl", lambda row: row["step"] <= step if "loss" in row else row["step"] < step)
    cut(folder / "samples.jsonl", lambda row: row["step"] < step)
    describe(folder, *said)
    print(f"{folder} {going_on(run)}")
    yield folder


def going_on(run):
    if not run.stored:
        return "has no checkpoint yet; it begins at step 0"
    if run.progress.step < run.steps:
        return f"goes on from step {run.progress.step}"
    return f"is finished, all {run.steps} steps are done; more train.steps, tokens or minutes would go on"


def describe(folder, config, tokenizer, environment):
    """All but weights that a run needs to be opened again."""
    plain = asdict(config) | {"resume": False, "resume_allow": []}
    disk.replace(folder / "tokenizer.json", json.dumps(tokenizer.state()))
    disk.replace(folder / "environment.txt", "\n".join(environment) + "\n")
    disk.replace(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)))


def environment(precision):
    device = f"{precision.device}, {precision.dtype}: {precision.reason}"
    return [versions(), *commit(), platform.platform(), device]


def versions():
    return f"python {platform.python_version()}, torch {torch.__version__}"


def commit():
    """Of this project, where git knows it."""
    git = ["git", "-C", Path(__file__).parent.parent, "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError):
        found = subprocess.run(git, capture_output=True, text=True)
        return [f"commit {found.stdout.strip()}"] if found.returncode == 0 else []
    return []


def check_room(run, home):
    """For what the run will keep: so many checkpoints, the best, one in the making."""
    one = sum(t.nbytes for t in run.tensors()["model"].values()) + run.cost.remembered
    there = home / str(run.config.name) / "checkpoints"
    kept = sum(path.stat().st_size for path in there.glob("step-*/*.safetensors"))
    wanted = one * (run.config.checkpoint.keep + 2) - kept
    place = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if wanted > free:
        raise DiskError(
            f"the checkpoints of this run will need {disk.in_bytes(wanted)} and {place} has "
            f"{disk.in_bytes(free)} left; free some space, or lower checkpoint.keep"
        )


def new_folder(config, home):
    """<home>/<name>, made for this run alone."""
    check_name(config, home)
    wanted = config.name or f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.model.kind}"
    for name in (wanted, *(f"{wanted}_{n}" for n in range(2, 1000))):
        try:
            (home / name).mkdir(parents=True)
        except FileExistsError:
            check_name(config, home)
        else:
            return home / name
    raise ValueError(f"{home / wanted} and a thousand like it exist; choose a name=")
