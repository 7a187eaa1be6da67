"""Malicious files: their manifest fits, their contents do not."""

import hashlib
import json

from safetensors.torch import load_file, save_file


def sealed(place):
    """Write a manifest that fits the files as they are now, as an attacker would."""
    files = {}
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        data = (place / name).read_bytes()
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (place / "manifest.json").write_text(json.dumps(files))


def rewritten(place, change, name="model.safetensors"):
    tensors = {key: change(key, tensor) for key, tensor in load_file(place / name).items()}
    save_file(tensors, place / name)
    sealed(place)
