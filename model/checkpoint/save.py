"""Save: a checkpoint is a folder, renamed into place once it is complete and on the disk."""

import errno
import json
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from data import disk
from model.checkpoint.files import list_checkpoints, read_pointer, step_dir

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES |= {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def save(folder, tensors, state, before_rename=lambda: None, written=None):
    """folder/step-########; tensors: {"model": {name: tensor}, "optimizer": {name: tensor}}. Sharded ones are
    in the draft already; `written` is the sum of their bytes and the errno of a process that failed, or 0."""
    final, draft = folder / step_dir(state["step"]), draft_dir(folder, state["step"])
    try:
        if written is None:
            shutil.rmtree(draft, ignore_errors=True)
            folder.mkdir(exist_ok=True)
            draft.mkdir()
            files = {
                f"{name}.safetensors": safetensors_bytes(tensors[name]) for name in sorted(tensors)
            }
            manifest = {
                name: disk.write_synced(draft / name, chunks) for name, chunks in files.items()
            }
        else:
            manifest = read_back(draft, *written)
        text = json.dumps(state, indent=1)
        manifest["state.json"] = disk.write_synced(draft / "state.json", [text.encode()])
        disk.write_synced(draft / "manifest.json", [json.dumps(manifest, indent=1).encode()])
        disk.sync_folder(draft)
        before_rename()
        if final.exists():
            disk.atomic_rmtree(final)
        os.rename(draft, final)
        disk.sync_folder(folder)
    except Exception:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    write_pointer(folder, "latest", state["step"])


def draft_dir(folder, step):
    return folder / f"{step_dir(step)}.draft"


def read_back(draft, total, code):
    """The entries of the manifest for files that several processes have written."""
    if code:
        raise OSError(code, os.strerror(code), str(draft))
    manifest = {}
    for name in ("model.safetensors", "optimizer.safetensors"):
        manifest[name], part = disk.read_back(draft / name)
        total -= part
    if total:
        raise OSError(errno.EIO, "what another process wrote is not there", str(draft))
    return manifest


def safetensors_header(tensors):
    """The first bytes of a safetensors file, and where each tensor begins in it, in this order."""
    header, places, end = {"__metadata__": {"format": "pt"}}, {}, 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):
        tensor, places[name] = tensors[name], end
        offsets, end = [end, end + tensor.nbytes], end + tensor.nbytes
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + place for name, place in places.items()}


def safetensors_bytes(tensors):
    """The chunks of a safetensors file: no copy of all weights, and each write is one the disk can refuse."""
    header, places = safetensors_header(tensors)
    yield header
    for name in places:
        yield raw_bytes(tensors[name])


def raw_bytes(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy()


def model_tensors(model):
    """Each tensor once: a tied head has none of its own."""
    once = {name for name, _ in model.named_parameters()} | {
        name for name, _ in model.named_buffers()
    }
    return {name: tensor for name, tensor in model.state_dict().items() if name in once}


def write_pointer(folder, name, step):
    disk.atomic_write(folder / name, step_dir(step) + "\n")


def prune(folder, n, step):
    """Delete all but the newest n checkpoints up to this step, the latest and the best."""
    set_aside(folder, step)
    kept = [read_pointer(folder, name) for name in ("latest", "best")]
    for path in reversed(list_checkpoints(folder)[n:]):
        if path.name not in kept:
            disk.atomic_rmtree(path)


def set_aside(folder, step):
    """Checkpoints beyond this step: damaged ones, or those of another run."""
    for path in list_checkpoints(folder):
        if path.name > step_dir(step):
            aside = path.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)


def clean_up(folder, step):
    """Remove what a killed run left behind, and set checkpoints beyond the step it resumes from aside."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.suffix in (".draft", ".trash"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    set_aside(folder, step)
    if step:
        write_pointer(folder, "latest", step)
    best = read_pointer(folder, "best")
    if best and not (folder / best).is_dir():
        (folder / "best").unlink()


def write_metadata(folder, config, overrides, tokenizer, environment):
    """What a run needs besides its weights."""
    from omegaconf import OmegaConf

    plain = asdict(config) | {"resume": False, "resume_allow": [], "overrides": overrides}
    disk.atomic_write(folder / "tokenizer.json", json.dumps(tokenizer.state()))
    disk.atomic_write(folder / "environment.txt", "\n".join(environment) + "\n")
    disk.atomic_write(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)))


def versions():
    return f"python {platform.python_version()}, torch {torch.__version__}"


def environment(precision):
    lines = [
        versions(),
        platform.platform(),
        f"{precision.device}, {precision.dtype}: {precision.reason}",
    ]
    git = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError, subprocess.CalledProcessError):
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout
        lines.insert(1, f"commit {commit.strip()}")
    return lines
