"""Run folder: its name, its lock, and what is written to it, and printed, before the first
step."""

import hashlib
import math
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from configs.errors import RunLockedError
from configs.parts import CONFIGS, LOADED, own_code
from configs.schema import Config
from data.disk import sync_folder
from model.runs import RUNS
from model.save import clean_up
from model.weights import count_parameters
from training.distributed import World
from training.run import Run

ROOT = CONFIGS.parent
NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]{0,119}")  # the runs of a sweep are in its folder


@contextmanager
def open_folder(config: Config, world: World) -> Iterator[Path]:
    """The folder of a run, locked: two runs must not write to one folder. The other processes of
    the run only read from it, if it has a name."""
    if not world.is_main:
        yield RUNS / str(config.name)
        return
    folder = make_folder(config)
    for parent in folder.parents:  # so that the folder survives a power cut
        sync_folder(parent)

    lock = FileLock(folder / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        message = f"{folder} is in use by another process; wait for it, or stop it"
        raise RunLockedError(message) from None

    try:
        if not config.resume:
            refuse_taken(folder)  # another process may have made it in the meantime
        clean_up(folder)
        yield folder
    finally:
        lock.release()
        if [path.name for path in folder.iterdir()] == ["lock"]:  # it failed before its first step
            shutil.rmtree(folder, ignore_errors=True)


def make_folder(config: Config) -> Path:
    """Make the folder; without name=, its name is the date, the time and the model, made unique."""
    if config.name:
        folder = RUNS / config.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    stem = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{config.model.kind}"
    folder = RUNS / stem
    for number in count(2):
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder = RUNS / f"{stem}_{number}"
    return folder


def check_name(name: str, resume: bool | str) -> None:
    """Refuse an invalid name, or one that is taken."""
    if not NAME.fullmatch(name):
        rule = "use up to 120 letters, digits, '_', '.' and '-', and begin with neither '.' nor '-'"
        raise ValueError(f"name is {name!r}; {rule}")
    if not resume:
        refuse_taken(RUNS / name)


def refuse_taken(folder: Path) -> None:
    if (folder / "config.yaml").exists() or (folder / "checkpoints").exists():
        raise ValueError(
            f"{folder} already exists; add resume=true to continue it, or change name="
        )


def environment(world: World) -> str:
    """The text of environment.txt: versions, commit, device, command line."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        commit = ""
    precision = world.precision
    lines = [
        f"python {platform.python_version()}, torch {torch.__version__}",
        f"commit {commit or 'unknown'}",
        platform.platform(),
        f"{precision.device}, {precision.dtype}: {precision.reason}",
        " ".join(sys.argv),
    ]
    return "\n".join(lines) + "\n"


def code_hashes() -> dict[str, str]:
    """A hash of each package and of user parts: two runs with equal hashes ran the same code."""
    hashes = {}
    for name in ("train.py", "configs", "data", "model", "training"):
        digest = hashlib.sha256()
        for path in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]:
            digest.update(path.read_bytes())
        hashes[name] = digest.hexdigest()[:16]
    return hashes | (own_code() if LOADED else {})


def describe(folder: Path, run: Run, steps: float) -> str:
    """The lines that are printed before the first step. steps: the length of the whole run."""
    config = run.config
    data = run.data
    world = run.world
    state = run.state
    train = data.train
    precision = world.precision
    dtype = str(precision.dtype).removeprefix("torch.")
    examples = data.objective.items

    is_new = not (config.init_from or config.resume)
    hint = "; for an export, add model.bigrams=null" if config.model.bigrams and is_new else ""
    vocab_size = data.tokenizer.vocab_size
    n_logits = len(config.model.classes or ()) or vocab_size

    begin = ""
    if state.step:
        begin = f", resuming from step {state.step:,}"
    elif config.resume:
        begin = ", starting at step 0"

    if math.isinf(steps):
        length = f"{config.train.minutes:g} minutes, and then the final evaluation"
    else:
        epochs = steps * config.train.batch_size / train.n
        length = f"{steps:,} steps, {epochs:.2f} epochs"

    batch = f"{config.train.batch_size:,} {examples} per step"
    if world.size > 1:
        batch += f" on {world.size} processes ({world.parallel})"
    if state.micro_batch_size * world.size < config.train.batch_size:
        batch += f", in micro-batches of {state.micro_batch_size}"

    lines = [
        f"run         {folder}{begin}",
        f"device      {precision.device}, {dtype}: {precision.reason}",
        f"model       {config.model.kind}, {count_parameters(run.model)}{hint}",
        f"data        {train.n_tokens:,} tokens, {train.n:,} {examples} to train on, "
        f"{data.validation.n:,} to validate",
        f"vocabulary  {vocab_size:,}; a uniform guess has loss {math.log(n_logits):.2f}",
        f"training    {length}, {batch}",
    ]
    if hasattr(run.model, "loss"):
        lines.append(f"loss        that of {type(run.model).__name__}.loss, also as val_loss")
    return "\n".join(lines)
