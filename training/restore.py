"""Restore: a run continues from a checkpoint."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from configs.errors import DataError
from data.disk import atomic_write
from model.checkpoint import read_config, read_frozen, read_state, read_tensors
from model.runs import list_checkpoints, read_best, read_rows, step_name, step_of
from model.save import mark_best
from model.weights import Tensors, frozen_tensors
from training.checkpointer import Checkpointer
from training.fsdp import shard_like


def restore(saver: Checkpointer, place: Path) -> None:
    """Load progress, weights, optimizers and scaler from a checkpoint, tensor by tensor."""
    run = saver.run
    folder = saver.folder
    state = run.state
    stored = read_state(place)
    if stored["dataset"] != state.dataset:
        changed = "the text, or the order that this version gives it, has changed"
        hint = f"restore it, or train from init_from={folder}"
        raise DataError(f"{changed} since {folder} was trained on it; {hint}")

    for name in vars(state):
        setattr(state, name, stored[name])
    with run.evaluated_weights():
        for file, tensors in saver.tensors().items():
            fill(tensors, read_tensors(place / f"{file}.safetensors", tensors))

    if frozen := frozen_tensors(run.model):
        fill(frozen, read_frozen(folder, read_config(folder), frozen))
    if stored["scaler"]:
        run.world.scaler.load_state_dict(stored["scaler"])
    saver.saved_step = state.step
    if run.world.is_main:
        set_aside_newer(folder, state.step)
        # the pointer may be lost, or older than this step, or have named a damaged, newer one
        if (folder / "checkpoints" / step_name(state.best_step)).exists():
            mark_best(folder, state.best_step)


@torch.no_grad()
def fill(tensors: Tensors, stored: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in stored:
        tensors[name].copy_(shard_like(tensor, tensors[name]))


def set_aside_newer(run: Path, step: int) -> None:
    """Set aside checkpoints newer than the one that a run resumes from: they are damaged."""
    for checkpoint in list_checkpoints(run):
        if step_of(checkpoint) > step:
            if checkpoint.name == read_best(run):
                (run / "checkpoints" / "best").unlink()
            aside = checkpoint.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(checkpoint, aside)


def final_loss(folder: Path) -> float | None:
    """The validation loss at the end of a run, if it has finished."""
    losses = [row["val_loss"] for row in read_rows(folder / "metrics.jsonl") if row.get("full")]
    return losses[-1] if losses else None


def truncate_logs(folder: Path, step: int) -> None:
    """Drop the rows that a resumed run will write again: those after its step, at step 0 also that
    of the first evaluation, and that of the full validation."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        path = folder / name
        if not path.exists():
            continue
        kept = []
        for row in read_rows(path):
            if step > 0 and row.get("step", 0) <= step and not row.get("full"):
                kept.append(json.dumps(row) + "\n")
        atomic_write(path, "".join(kept))
