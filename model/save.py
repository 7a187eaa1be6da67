"""Save: a checkpoint, a folder of safetensors and JSON, is renamed into place once it is complete
and on the disk; what else a run needs is written at each start."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import yaml

from configs.schema import Config
from data.disk import atomic_folder, atomic_write, sync_and_hash, sync_folder, write_synced
from data.tokenizers.tokenizer import Tokenizer
from model.runs import FORMAT, list_checkpoints, read_best, step_name
from model.weights import Tensors, write_tensors


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensors], state: dict) -> None:
    """Write a checkpoint. tensors: those of each file, such as {"model": {name: tensor}}."""
    final = folder / "checkpoints" / step_name(step)
    final.parent.mkdir(exist_ok=True)
    sync_folder(folder)  # the new folder, and new logs

    with atomic_folder(final) as draft:
        for name, named in tensors.items():
            write_tensors(draft / f"{name}.safetensors", named)
        write_synced(draft / "state.json", json.dumps({"format": FORMAT, "step": step} | state))
        manifest = {path.name: sync_and_hash(path) for path in sorted(draft.iterdir())}
        write_synced(draft / "manifest.json", json.dumps(manifest, indent=1))
        if final.exists():  # it was saved before, but the disk reported an error
            remove(final)


def remove(checkpoint: Path) -> None:
    """Rename, then delete: a half-deleted checkpoint must not look like a complete one."""
    trash = checkpoint.with_suffix(".trash")
    os.rename(checkpoint, trash)
    sync_folder(trash.parent)
    shutil.rmtree(trash)


def clean_up(folder: Path) -> None:
    """Remove what a killed run was writing or deleting."""
    for pattern in ("*.draft", "*.trash"):
        for path in (folder / "checkpoints").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest checkpoints and the best."""
    best = read_best(folder)
    for checkpoint in list_checkpoints(folder)[keep:]:
        if checkpoint.name != best:
            remove(checkpoint)


def mark_best(folder: Path, step: int) -> None:
    atomic_write(folder / "checkpoints" / "best", step_name(step) + "\n")


def write_metadata(
    folder: Path, config: Config, origin: dict, tokenizer: Tokenizer, environment: str
) -> None:
    """Write what a run needs besides its weights. origin: the choices (an option of each config
    group) and the overrides that the config was composed from, and the hashes of the code and of
    the frozen weights."""
    plain = {
        **asdict(config),
        "resume": False,
        "choices": {},  # what origin has replaces these four
        "overrides": [],
        "code": None,
        "frozen": None,
        **origin,
    }
    atomic_write(folder / "tokenizer.json", json.dumps(tokenizer.state()))
    atomic_write(folder / "environment.txt", environment)
    atomic_write(folder / "config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
