"""Restore: the newest checkpoint that is whole becomes the state of a run again."""

import sys
from pathlib import Path
from typing import NamedTuple

import torch

from training.errors import CheckpointError
from training.stored import STEP, named, read_state, verify
from training.tensors import compare, stored_tensors


class Stored(NamedTuple):
    """A checkpoint that was found whole, and what its state.json says."""

    place: Path
    state: dict


def newest(folder, ranks, device):
    """The newest checkpoint of a run that is whole, the same one in all processes; None where there is none
    at all. Those that are not are told by name."""
    step = find(folder) if ranks.first else 0
    [step] = ranks.sum(step if ranks.first else 0, device=device)
    if step < 0:
        return None
    place = folder / "checkpoints" / named(int(step))
    return Stored(place, read_state(place))


def find(folder):
    """Its step, or -1."""
    place, reasons = folder / "checkpoints", []
    if not place.is_dir():
        return -1
    for path in sorted((p for p in place.iterdir() if STEP.fullmatch(p.name)), reverse=True):
        try:
            verify(path)
            read_state(path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            print(f"warning: {reason}; going back to {path.name}", file=sys.stderr)
        return int(path.name.removeprefix("step-"))
    if reasons:
        raise CheckpointError(f"no checkpoint of {folder} is whole: {'; '.join(reasons)}")
    return -1


def restore(run):
    """Weights, optimizer and scaler of the checkpoint from which the run goes on, tensor by tensor."""
    place, state = run.stored
    compare(place / "model.safetensors", run.model)
    weights = run.model.state_dict()
    with torch.no_grad():
        for name, tensor in stored_tensors(place / "model.safetensors"):
            weights[name].copy_(tensor)
    try:
        run.optimizer.load(dict(stored_tensors(place / "optimizer.safetensors")))
    except ValueError as error:
        raise CheckpointError(f"{place / 'optimizer.safetensors'}: {error}") from None
    if run.scaler.is_enabled() and state["scaler"]:
        run.scaler.load_state_dict(state["scaler"])
