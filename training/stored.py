"""Stored: what lies in the folder of a run, read back and checked. It is data: it chooses no code, and it
names no path outside."""

import hashlib
import json
import re

import yaml

from data.tokenizer import from_state
from training.errors import CheckpointError

STEP = re.compile(r"step-\d{8}")
FILES = {"model.safetensors", "optimizer.safetensors", "state.json"}


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
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(text)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not the folder of a run: it has no config.yaml") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__})") from None
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict) or "${" in text:
        raise CheckpointError(f"{path} is not the config of a run")
    return config


def read_tokenizer(folder):
    path = folder / "tokenizer.json"
    try:
        return from_state(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def find_checkpoint(folder, which):
    place = folder / "checkpoints"
    if str(which).isdigit():
        name = named(int(which))
    elif which in ("latest", "best"):
        try:
            name = (place / which).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise CheckpointError(f"{folder} has no {which} checkpoint") from None
    else:
        raise ValueError(f"the checkpoint is {which!r}; choose latest, best or a step")
    if not STEP.fullmatch(name) or not (place / name).is_dir():
        there = sorted(path.name for path in place.glob("step-*") if STEP.fullmatch(path.name))
        raise CheckpointError(f"{folder} has no checkpoint {name!r}; it has {', '.join(there) or 'none'}")
    return place / name


def verify(place):
    """Every file is the one that was saved."""
    try:
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{place}: manifest.json cannot be read ({error})") from None
    if not isinstance(manifest, dict) or set(manifest) != FILES:
        raise CheckpointError(f"{place}: manifest.json does not list what a checkpoint holds")
    for name, entry in manifest.items():
        try:
            with open(place / name, "rb") as file:
                found = {
                    "bytes": (place / name).stat().st_size,
                    "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
                }
        except OSError as error:
            raise CheckpointError(f"{place / name} cannot be read ({error.strerror})") from None
        if found != entry:
            raise CheckpointError(f"{place / name} is damaged: it is not the file that was saved")
