"""Weights: the tensors of a model, as a file holds them, and a model that is given them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from configs.errors import CheckpointError
from configs.schema import ModelConfig
from model.transformer import build_model

Tensors = dict[str, Tensor]


def read_json(path: Path) -> dict[str, Any]:
    try:
        return {**json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError) as error:  # TypeError: the JSON is a list, for example
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def write_tensors(path: Path, tensors: Tensors) -> None:
    """One safetensors file; the bytes depend on the tensors alone."""
    try:
        save_file(tensors, path, {"format": "pt"})
        path.chmod(path.parent.stat().st_mode & 0o666)  # it would be its owner's alone
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(f"{path}: {error}") from None


def trained_parameters(model: nn.Module) -> Tensors:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def model_tensors(model: nn.Module) -> Tensors:
    """Each trained tensor, and each buffer, once: a tied head has none of its own."""
    once = {*trained_parameters(model), *dict(model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in once}


def sha256(model: nn.Module) -> str:
    """Of its weights, wherever they are from."""
    digest = hashlib.sha256()
    for _, tensor in sorted(model_tensors(model).items()):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def assign_weights(model: Any, tensors: Tensors) -> nn.Module:
    model.load_state_dict(tensors, strict=False, assign=True)
    model.head.tie(model.embedding)
    return model.requires_grad_()


def rebuilt(model: Any, config: ModelConfig) -> nn.Module:
    """The same weights, with another dropout or a shorter context: learned positions are cut."""
    with torch.device("meta"):
        new = build_model(config, model.embedding.table.num_embeddings)
    weights = model_tensors(model)
    cut = {}
    for name, tensor in model_tensors(new).items():
        part = tuple(slice(size) for size in tensor.shape)
        cut[name] = weights[name][part].detach().clone()
    return assign_weights(new, cut)
