"""Tensors: a file of them, read back and compared with what a model needs."""

import torch
from safetensors import SafetensorError, safe_open

from training.checkpoint import model_tensors
from training.errors import CheckpointError


def shapes(path):
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def compare(path, model):
    """The file has the model's tensors, all of them and no others."""
    there, wanted = shapes(path), {name: tuple(t.shape) for name, t in model_tensors(model).items()}
    for name in sorted(there.keys() | wanted.keys()):
        if there.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path}: {name} is {there.get(name, 'missing')} and the model of config.yaml has "
                f"{wanted.get(name, 'none')}"
            )


def stored_tensors(path):
    """(name, tensor) one by one, as copies: a map of the file would die with it."""
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name).clone()
                if not torch.isfinite(tensor).all():
                    raise CheckpointError(f"{path}: {name} holds what is no number")
                yield name, tensor
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def filled(model, tensors):
    """The model with these tensors for its own."""
    model.load_state_dict(tensors, strict=False, assign=True)
    model.head.tie(model.embedding)
    return model.requires_grad_()
