"""Stored: what lies in the folder of a run, read back and checked. It is data: it chooses no code, and it
names no path outside."""

import hashlib
import json
import os
import re
import stat
from contextlib import contextmanager
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from data.tokenizer import from_state
from model.config import ModelConfig
from training.errors import CheckpointError

RUNS = Path("runs")
STEP = re.compile(r"step-\d{8}")
FILES = {"model.safetensors", "optimizer.safetensors", "state.json"}
FORMAT = 1
SMALL = 1 << 20  # bytes of a file that a person could read
LARGE = 1 << 27  # of a tokenizer
CONFIG = 1 << 16
STATE = {
    "step": (int,),
    "best": (float,),
    "since_best": (int,),
    "judged": (int,),
    "skipped": (int,),
    "steps": (int,),
    "ends": (list,),
    "micro_batch": (int,),
    "scaler": (dict,),
    "data": (str,),
}


def newest_run(home):
    """The folder below home, or below one of its sweeps, that has the newest checkpoint."""
    pointers = [*home.glob("*/checkpoints/latest"), *home.glob("sweep-*/*/checkpoints/latest")]
    if not pointers:
        raise CheckpointError(
            f"there is no run with a checkpoint in {home}/: train one first: python train.py"
        )
    return max(pointers, key=lambda path: path.stat().st_mtime_ns).parents[1]


def named(step):
    return f"step-{step:08}"


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
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__})") from None
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict) or "${" in text:
        raise CheckpointError(f"{path} is not the config of a run")
    return config


def model_config(node):
    """The model of a config, typed."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), node))


def read_tokenizer(folder):
    path = folder / "tokenizer.json"
    try:
        return from_state(read_json(path, LARGE))
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def find_checkpoint(folder, which):
    place = folder / "checkpoints"
    there = sorted(path.name for path in place.glob("step-*") if STEP.fullmatch(path.name))
    if str(which).isdigit():
        name = named(int(which))
    elif which == "latest" and there and not (place / which).exists():
        name = there[-1]  # a kill came between a checkpoint and its pointer
    elif which in ("latest", "best"):
        try:
            name = (place / which).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise CheckpointError(f"{folder} has no {which} checkpoint") from None
    else:
        raise ValueError(f"the checkpoint is {which!r}; choose latest, best or a step")
    if not STEP.fullmatch(name) or not (place / name).is_dir() or (place / name).is_symlink():
        raise CheckpointError(f"{folder} has no checkpoint {name!r}; it has {', '.join(there) or 'none'}")
    return place / name


def verify(place):
    """Every file is the one that was saved."""
    manifest = read_json(place / "manifest.json")
    if not isinstance(manifest, dict) or set(manifest) != FILES:
        raise CheckpointError(f"{place}: manifest.json does not list what a checkpoint holds")
    for name, entry in manifest.items():
        with opened(place / name) as file:
            size = os.fstat(file.fileno()).st_size
            if not isinstance(entry, dict) or entry.get("bytes") != size:
                raise CheckpointError(
                    f"{place / name} is damaged: it has {size:,} bytes, not those that were saved"
                )
            if entry != {"bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}:
                raise CheckpointError(f"{place / name} is damaged: it is not the file that was saved")


@contextmanager
def opened(path):
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
    with opened(path) as file:
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
    if state.get("micro_batch", 0) is None:
        raise CheckpointError(
            f"{place} was imported and has made no step; init_from={place.parents[1]} trains from it"
        )
    for name, kinds in STATE.items():
        if type(state.get(name)) not in kinds:
            raise CheckpointError(f"{path}: {name} is {state.get(name)!r:.60}, and that is no such state")
    if named(state["step"]) != place.name:
        raise CheckpointError(f"{path} is of step {state['step']}; it belongs elsewhere")
    return state
