"""Checkpoint: a folder with all that a run needs to go on, or to speak."""

import hashlib
import json
import os
import shutil

from safetensors.torch import save_file

from training.stored import STEP, named

TENSORS = {"format": "pt"}  # nothing else, so that the same weights are the same bytes


def save(folder, model, optimizer, state):
    """checkpoints/step-########, visible once it is complete."""
    final = folder / named(state["step"])
    draft = final.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    save_file(model_tensors(model), draft / "model.safetensors", TENSORS)
    save_file(
        {n: t.contiguous() for n, t in optimizer.tensors().items()}, draft / "optimizer.safetensors", TENSORS
    )
    (draft / "state.json").write_text(json.dumps(state, indent=1))
    files = {path.name: entry(path) for path in sorted(draft.iterdir())}
    (draft / "manifest.json").write_text(json.dumps(files, indent=1))
    shutil.rmtree(final, ignore_errors=True)
    os.rename(draft, final)
    point(folder, "latest", state["step"])


def model_tensors(model):
    """Each tensor once: a tied head has none of its own."""
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in once}


def entry(path):
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def point(folder, name, step):
    """latest and best are files of one line, replaced whole."""
    draft = folder / f"{name}.draft"
    draft.write_text(named(step) + "\n")
    os.replace(draft, folder / name)


def keep_newest(folder, n):
    """All but the newest n go, and never the best."""
    best = (folder / "best").read_text().strip() if (folder / "best").exists() else None
    steps = sorted(path for path in folder.iterdir() if STEP.fullmatch(path.name))
    for path in steps[:-n]:
        if path.name != best:
            shutil.rmtree(path)
