"""Tensors: a file of them, read back and compared with what a model needs."""

import torch
from safetensors import SafetensorError, safe_open

from training.checkpoint import DTYPES
from training.errors import CheckpointError


def kinds(path):
    """{name: dtype and shape} of the tensors in a file, as its header has them."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: kind(part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def kind(dtype, shape):
    return f"{DTYPES.get(dtype, dtype)} {tuple(shape)}"


def compare(path, tensors, whose):
    """The file has tensors like these, all of them and no others."""
    there = kinds(path)
    wanted = {name: kind(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(there.keys() | wanted.keys()):
        if there.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path}: {name!r:.200} is {there.get(name, 'missing')} and the {whose} of config.yaml has "
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
