"""Restore: the newest checkpoint that is whole becomes the state of a run again."""

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from training.errors import CheckpointError
from training.opening import compare
from training.stored import STEP, named, read_state, verify


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


def restore(run, stored):
    """Weights, optimizer, scaler and progress, tensor by tensor."""
    place, state = stored
    compare(place / "model.safetensors", run.model)
    weights = run.model.state_dict()
    with torch.no_grad():
        for name, tensor in tensors(place / "model.safetensors"):
            weights[name].copy_(tensor)
    try:
        run.optimizer.load(dict(tensors(place / "optimizer.safetensors")))
    except ValueError as error:
        raise CheckpointError(f"{place / 'optimizer.safetensors'}: {error}") from None
    if run.scaler.is_enabled() and state["scaler"]:
        run.scaler.load_state_dict(state["scaler"])


def tensors(path):
    """(name, tensor) one by one, as copies: a map of the file would die with it."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name).clone()
                if not tensor.isfinite().all():
                    raise CheckpointError(f"{path}: {name} holds what is no number")
                yield name, tensor
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None
