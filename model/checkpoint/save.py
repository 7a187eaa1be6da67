"""Checkpoint: a folder with all that a run needs to go on, or to speak. A rename makes it visible, after all
of it is on the disk."""

import json
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from omegaconf import OmegaConf

from data import disk
from model.checkpoint.files import STEP, list_checkpoints, read_pointer, step_dir

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save(folder, tensors, state):
    """checkpoints/step-########; tensors: {"model": {name: tensor}, "optimizer": {name: tensor}}."""
    final = folder / step_dir(state["step"])
    draft = final.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        folder.mkdir(exist_ok=True)
        draft.mkdir()
        files = {f"{name}.safetensors": packed(part) for name, part in tensors.items()}
        files["state.json"] = [json.dumps(state, indent=1).encode()]
        manifest = {name: disk.write_synced(draft / name, chunks) for name, chunks in sorted(files.items())}
        disk.write_synced(draft / "manifest.json", [json.dumps(manifest, indent=1).encode()])
        disk.sync(draft)
        if final.exists():
            disk.atomic_rmtree(final)
        os.rename(draft, final)
        disk.sync(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    write_pointer(folder, "latest", state["step"])


def packed(tensors):
    """The bytes of a safetensors file, piece by piece (github.com/huggingface/safetensors). Its metadata
    holds nothing else, so that the same tensors are the same bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    for name, tensor in ordered:
        offsets, at = [at, at + tensor.nbytes], at + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        yield tensor.contiguous().flatten().view(torch.uint8).numpy()


def model_tensors(model):
    """Each tensor once: a tied head has none of its own."""
    once = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    return {name: tensor for name, tensor in model.state_dict().items() if name in once}


def write_pointer(folder, name, step):
    """latest and best are files of one line, replaced whole."""
    disk.atomic_write(folder / name, step_dir(step) + "\n")


def prune(folder, n):
    """All but the newest n go, and never the best."""
    best = read_pointer(folder, "best")
    for path in reversed(list_checkpoints(folder)[n:]):
        if path.name != best:
            disk.atomic_rmtree(path)


def clean_up(folder, step):
    """What a killed run has left, and what lies beyond the step from which it goes on, is out of the way."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.suffix in (".draft", ".trash") and path.is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".draft":
            path.unlink()
        elif STEP.fullmatch(path.name) and path.name > step_dir(step):
            aside = path.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
    if step:
        write_pointer(folder, "latest", step)
    best = read_pointer(folder, "best")
    if best and not (folder / best).is_dir():
        (folder / "best").unlink()


def write_metadata(folder, config, overrides, tokenizer, environment):
    """All but weights that a run needs to be opened again."""
    plain = asdict(config) | {"resume": False, "resume_allow": [], "overrides": overrides}
    disk.atomic_write(folder / "tokenizer.json", json.dumps(tokenizer.state()))
    disk.atomic_write(folder / "environment.txt", "\n".join(environment) + "\n")
    disk.atomic_write(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)))


def environment(precision):
    device = f"{precision.device}, {precision.dtype}: {precision.reason}"
    return [versions(), *commit(), platform.platform(), device]


def versions():
    return f"python {platform.python_version()}, torch {torch.__version__}"


def commit():
    """Of this project, where git knows it."""
    git = ["git", "-C", Path(__file__).parent.parent, "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError):
        found = subprocess.run(git, capture_output=True, text=True)
        return [f"commit {found.stdout.strip()}"] if found.returncode == 0 else []
    return []
