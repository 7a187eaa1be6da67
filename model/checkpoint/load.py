"""Tensors: a file of them, read back and compared with what a model needs."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn as nn
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from configs.errors import CheckpointError
from data.tokenizers.tokenizer import Tokenizer
from model import build_model
from model.checkpoint.files import (
    find_checkpoint,
    list_checkpoints,
    model_config,
    read_config,
    read_tokenizer,
    refuse_links,
    step_of,
    verify,
)
from model.checkpoint.save import DTYPES, model_tensors


def tensor_specs(path):
    """{name: dtype and shape} of the tensors in a file, as its header has them."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: tensor_spec(part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None


def tensor_spec(dtype, shape):
    return f"{DTYPES.get(dtype, dtype)} {tuple(shape)}"


def check_specs(path, tensors, whose):
    """The file has tensors like these, all of them and no others."""
    there = tensor_specs(path)
    wanted = {name: tensor_spec(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(there.keys() | wanted.keys()):
        if there.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{path}: {name!r:.200} is {there.get(name, 'missing')} and the {whose} of config.yaml has "
                f"{wanted.get(name, 'none')}"
            )


def iter_tensors(path):
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


def load_weights(model, tensors):
    """The model with these tensors for its own."""
    model.load_state_dict(tensors, strict=False, assign=True)
    model.head.tie(model.embedding)
    return model.requires_grad_()


class LoadedRun(NamedTuple):
    """A trained model, ready to be asked; the config of its run; the step at which it was saved."""

    model: nn.Module
    tokenizer: Tokenizer
    config: dict
    step: int


def load_run(folder, which="latest"):
    """which: latest, best, or a step that was saved."""
    folder = Path(folder)
    refuse_links(folder)
    config, tokenizer = read_config(folder), read_tokenizer(folder)
    place = find_checkpoint(folder, which)
    check_whole(place)
    tensors = place / "model.safetensors"
    with torch.device("meta"):  # what the config asks for takes no memory until the file has shown to fill it
        model = make_model(config, tokenizer, most_layers=len(tensor_specs(tensors)))
    check_specs(tensors, model_tensors(model), "model")
    return LoadedRun(load_weights(model, load_file(tensors)).eval(), tokenizer, config, step_of(place))


def check_whole(place):
    """What is damaged is told, and what there is instead."""
    try:
        verify(place)
    except CheckpointError as error:
        others = [
            step_of(path) for path in list_checkpoints(place.parent) if path != place and is_whole(path)
        ]
        instead = f"a checkpoint that is whole is of step {' or '.join(map(str, others))}"
        raise CheckpointError(f"{error}; {instead if others else 'no other is whole'}") from None


def is_whole(place):
    with suppress(CheckpointError):
        verify(place)
        return True
    return False


def make_model(config, tokenizer, most_layers):
    try:
        asked = model_config(config["model"])
        if max(asked.n_layers, asked.encoder.n_layers or 0) > most_layers:
            raise ValueError(f"{asked.n_layers} layers are more than the file has tensors")
        return build_model(asked, tokenizer.vocab_size)
    except (OmegaConfBaseException, ValueError, TypeError, OverflowError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        raise CheckpointError(f"config.yaml does not describe a model: {said}") from None
