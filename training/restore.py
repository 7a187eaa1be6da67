"""Restore: the newest checkpoint that is whole becomes the state of a run again."""

import sys
from pathlib import Path
from typing import NamedTuple

import torch

from training.checkpoint import model_tensors
from training.errors import CheckpointError
from training.stored import named, pointed, read_state, step_of, steps_of, verify
from training.tensors import compare, stored_tensors


class Stored(NamedTuple):
    """A checkpoint that was found whole, what its state.json says, and whether it is the best."""

    place: Path
    state: dict
    is_best: bool


def newest(folder, ranks, device):
    """The newest checkpoint of a run that is whole, the same one in all processes; None where there is none
    at all. Those that are not are told by name."""
    step = find(folder) if ranks.first else 0
    [step] = ranks.sum(step if ranks.first else 0, device=device)
    if step < 0:
        return None
    place = folder / "checkpoints" / named(int(step))
    return Stored(place, read_state(place), pointed(place.parent, "best") == place.name)


def find(folder):
    """Its step, or -1."""
    place, reasons = folder / "checkpoints", []
    if not place.is_dir():
        return -1
    for path in steps_of(place):
        try:
            verify(path)
            read_state(path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            print(f"warning: {reason}; going back to {path.name}", file=sys.stderr)
        return step_of(path)
    if reasons:
        raise CheckpointError(f"no checkpoint of {folder} is whole: {'; '.join(reasons)}")
    return -1


def restore(run):
    """Weights, optimizer and scaler of the checkpoint from which the run goes on, tensor by tensor."""
    place, state = run.stored.place, run.stored.state
    weights, remembered = place / "model.safetensors", place / "optimizer.safetensors"
    compare(weights, model_tensors(run.model), "model")
    stepped = state["step"] > state["skipped"]
    compare(remembered, run.optimizer.wanted() if stepped else {}, "optimizer")
    own = run.model.state_dict()
    with torch.no_grad():
        for name, tensor in stored_tensors(weights):
            own[name].copy_(tensor)
    run.optimizer.load(dict(stored_tensors(remembered)))
    if run.scaler.is_enabled() and state["scaler"]:
        run.scaler.load_state_dict(state["scaler"])
