"""Weights: the tensors of a model, as a file holds them, and how a model gets them."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from configs.errors import CheckpointError

Tensors = dict[str, Tensor]


def read_json(path: Path) -> dict:
    try:
        return {**json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError) as error:  # TypeError: the JSON is a list, for example
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write one safetensors file; its bytes depend only on the tensors."""
    try:
        save_file(tensors, path, {"format": "pt"})
        path.chmod(path.parent.stat().st_mode & 0o666)  # else only its owner could read it
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(f"{path}: {error}") from None


def trained_parameters(model: nn.Module) -> Tensors:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def frozen_tensors(model: nn.Module) -> Tensors:
    """The parameters that are not trained: a run stores them once, beside its checkpoints."""
    return {name: p for name, p in model.named_parameters() if not p.requires_grad}


def model_tensors(model: nn.Module) -> Tensors:
    """What each checkpoint holds: trained parameters and buffers, each once. A tied head has no
    tensor of its own."""
    once = {*trained_parameters(model), *dict(model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in once}


def count_parameters(model: nn.Module) -> str:
    """The number of parameters, in words; also of those that are active for a token and of those
    that are trained, if these are fewer."""
    total = sum(p.numel() for p in model.parameters())
    active = total - sum(getattr(module, "n_inactive", 0) for module in model.modules())
    trained = sum(p.numel() for p in trained_parameters(model).values())
    words = f"{total:,} parameters"
    if active < total:
        words += f", {active:,} active"
    if trained < total:
        words += f", {trained:,} trained"
    return words


def assign_weights(model: Any, tensors: Tensors) -> nn.Module:
    model.load_state_dict(tensors, strict=False, assign=True)
    model.head.tie(model.embedding)
    return model
