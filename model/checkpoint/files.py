"""Stored: what lies in the folder of a run, read back and checked. It is data: it chooses no code, and it
names no path outside."""

import hashlib
import json
import math
import os
import re
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import yaml

from configs.errors import CheckpointError
from configs.registry import from_dict
from configs.schema import ModelConfig
from data.tokenizers.tokenizer import tokenizer_from_state

RUNS_DIR = Path("runs")
STEP = re.compile(r"step-\d{8}")
FILES = {"model.safetensors", "optimizer.safetensors", "state.json"}
FORMAT = 2
SMALL = 1 << 20  # bytes of a file that a person could read
LARGE = 1 << 27  # of a tokenizer
CONFIG = 1 << 16
MAX_INT = 10**12
# the kind of each entry of a state and, of numbers, the least and the most
STATE = {
    "step": (int, 0, MAX_INT),
    "best_val_loss": (float, 0, math.inf),
    "evals_since_best": (int, 0, MAX_INT),
    "last_eval_step": (int, -1, MAX_INT),
    "skipped_steps": (int, 0, MAX_INT),
    "total_steps": (int, 0, MAX_INT),
    "stop_criteria": (list,),
    "micro_batch_size": (int, 1, MAX_INT),
    "scaler": (dict,),
    "dataset_key": (str,),
}
SCALER = {
    "scale": (float, 1e-30, 1e30),
    "growth_factor": (float, 1, 1e3),
    "backoff_factor": (float, 1e-3, 1),
    "growth_interval": (int, 1, MAX_INT),
    "_growth_tracker": (int, 0, MAX_INT),
}


@dataclass
class TrainState:
    """How far a run has come, and how well."""

    step: int = 0
    best_val_loss: float = math.inf  # loss of validation
    evals_since_best: int = 0  # evaluations
    last_eval_step: int = -1  # the step of the last evaluation; after a resume it is repeated, and counts once
    skipped_steps: int = 0  # steps whose gradient overflowed float16

    def judge(self, loss):
        if self.last_eval_step == self.step:
            return
        better = loss < self.best_val_loss
        self.best_val_loss, self.evals_since_best = (loss, 0) if better else (self.best_val_loss, self.evals_since_best + 1)
        self.last_eval_step = self.step

    def out_of(self, patience):
        return patience is not None and self.evals_since_best >= patience


def newest_run(home):
    """The folder below home, or below one of its sweeps, that has the newest checkpoint."""
    places = [*home.glob("*/checkpoints"), *home.glob("sweep-*/*/checkpoints")]
    places = [place for place in places if list_checkpoints(place) or (place / "latest").exists()]
    if not places:
        raise CheckpointError(
            f"there is no run with a checkpoint in {home}/: train one first: python train.py"
        )
    return max(places, key=lambda place: place.stat().st_mtime_ns).parent


def list_checkpoints(place):
    """The checkpoints in a folder of them, the newest first."""
    return sorted((path for path in place.glob("step-*") if STEP.fullmatch(path.name)), reverse=True)


def refuse_links(folder):
    """What a run keeps lies in its folder: a link would lead elsewhere, a pipe would wait for ever."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            with suppress(FileNotFoundError):  # a run at work tidies up meanwhile
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    raise CheckpointError(
                        f"{path} is a link or no plain file, and the folder of a run has none; take it away"
                    )
        if "wandb" in folders:  # which makes links of its own
            folders.remove("wandb")


def step_dir(step):
    return f"step-{step:08}"


def step_of(place):
    """The step whose checkpoint has this folder."""
    return int(place.name.removeprefix("step-"))


def read_config(folder):
    path = folder / "config.yaml"
    if not path.exists():
        raise CheckpointError(f"{folder} is not the folder of a run: it has no config.yaml")
    text = read_text(path, CONFIG)
    if text.count("[") + text.count("{") > 1000:  # yaml would take its time over them
        raise CheckpointError(f"{path} is not the config of a run: it nests too much")
    try:
        for token in yaml.scan(text):
            if isinstance(token, (yaml.AliasToken, yaml.AnchorToken, yaml.TagToken)):
                raise CheckpointError(f"{path} is not the config of a run: it has an alias or a tag")
        config = yaml.safe_load(text)
        plain = is_plain(config)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__})") from None
    if not plain or not isinstance(config, dict) or not isinstance(config.get("model"), dict) or "${" in text:
        raise CheckpointError(f"{path} is not the config of a run")
    return config


def is_plain(node):
    """Whether it is of words and numbers alone; YAML knows dates, too, and keys that are none."""
    if isinstance(node, dict):
        return all(isinstance(key, str) and is_plain(value) for key, value in node.items())
    if isinstance(node, list):
        return all(map(is_plain, node))
    return node is None or isinstance(node, str | int | float)


def model_config(node):
    """The model of a config, typed."""
    return from_dict(ModelConfig, node, "model.")


def read_tokenizer(folder):
    path = folder / "tokenizer.json"
    try:
        return tokenizer_from_state(read_json(path, LARGE))
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def find_checkpoint(folder, which):
    place = folder / "checkpoints"
    there = [path.name for path in list_checkpoints(place)]
    if re.fullmatch("[0-9]{1,8}", str(which)):
        name = step_dir(int(which))
    elif which in ("latest", "best"):
        name = read_pointer(place, which)
        if which == "latest" and there and name is None:
            name = there[0]  # a kill came between a checkpoint and its pointer
        if name is None:
            raise CheckpointError(f"{folder} has no {which} checkpoint")
    else:
        raise ValueError(f"the checkpoint is {which!r:.60}; choose latest, best or a step")
    if name not in there or not (place / name).is_dir():
        raise CheckpointError(f"{folder} has no checkpoint {name!r}; it has {', '.join(there) or 'none'}")
    return place / name


def read_pointer(place, which):
    """The name of the checkpoint that latest or best stands for, or None."""
    if not (place / which).exists():
        return None
    name = read_text(place / which).strip()
    if not STEP.fullmatch(name):
        raise CheckpointError(f"{place / which} is {name!r:.60}, which names no checkpoint; take it away")
    return name


def verify(place):
    """Every file is the one that was saved."""
    manifest = read_json(place / "manifest.json")
    if not isinstance(manifest, dict) or set(manifest) != FILES:
        raise CheckpointError(f"{place}: manifest.json does not list what a checkpoint holds")
    for name, entry in manifest.items():
        with open_file(place / name) as file:
            size = os.fstat(file.fileno()).st_size
            if not isinstance(entry, dict) or entry.get("bytes") != size:
                raise CheckpointError(
                    f"{place / name} is damaged: it has {size:,} bytes, not those that were saved"
                )
            if entry != {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}:
                raise CheckpointError(f"{place / name} is damaged: it is not the file that was saved")


@contextmanager
def open_file(path):
    """A plain file, read as bytes: no link, no device, nothing that waits."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise CheckpointError(f"{path} is no plain file")
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({(error.strerror or str(error)).lower()})") from None


def read_text(path, most=SMALL):
    with open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise CheckpointError(f"{path} is larger than the {most:,} bytes it may have")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} cannot be read (it is not UTF-8)") from None


def read_json(path, most=SMALL):
    try:
        return json.loads(read_text(path, most))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def read_state(place):
    """What state.json says of the run, each number of its kind."""
    path = place / "state.json"
    state = read_json(path)
    if not isinstance(state, dict) or type(state.get("format")) is not int:
        raise CheckpointError(f"{path} is not the state of a run")
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"{path} is of format {state['format']} and this program reads format {FORMAT}; "
            "continue the run with the version that wrote it"
        )
    if state.get("micro_batch_size", 0) is None:
        raise CheckpointError(
            f"{place} was imported and has made no step; init_from={place.parents[1]} trains from it"
        )
    check_fields(path, state, STATE)
    if state["scaler"]:
        check_fields(path, state["scaler"], SCALER)
    if step_dir(state["step"]) != place.name:
        raise CheckpointError(f"{path} is of step {state['step']}; it belongs elsewhere")
    return SimpleNamespace(**state)


def check_fields(path, entries, kinds):
    for name, (kind, *bounds) in kinds.items():
        value = entries.get(name)
        if type(value) is not kind or (bounds and not bounds[0] <= value <= bounds[1]):
            raise CheckpointError(f"{path}: {name} is {value!r:.60}, and that is no such state")
