"""Opening: the folder of a run becomes a tokenizer and a model again. What lies there is data: it chooses no
code, names no path, and claims no more memory than it fills."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn as nn
from omegaconf.errors import OmegaConfBaseException
from safetensors.torch import load_file

from data.tokenizer import Tokenizer
from model import build_model
from training.checkpoint import model_tensors
from training.errors import CheckpointError
from training.stored import (
    check_plain,
    find_checkpoint,
    model_config,
    read_config,
    read_tokenizer,
    step_of,
    steps_of,
    verify,
)
from training.tensors import compare, filled, kinds


class Opened(NamedTuple):
    """A trained model, ready to be asked; the config of its run; the step at which it was saved."""

    model: nn.Module
    tokenizer: Tokenizer
    config: dict
    step: int


def open_run(folder, which="latest"):
    """which: latest, best, or a step that was saved."""
    folder = Path(folder)
    check_plain(folder)
    config, tokenizer = read_config(folder), read_tokenizer(folder)
    place = find_checkpoint(folder, which)
    check_whole(place)
    tensors = place / "model.safetensors"
    with torch.device("meta"):  # what the config asks for takes no memory until the file has shown to fill it
        model = make_model(config, tokenizer, most_layers=len(kinds(tensors)))
    compare(tensors, model_tensors(model), "model")
    return Opened(filled(model, load_file(tensors)).eval(), tokenizer, config, step_of(place))


def check_whole(place):
    """What is damaged is told, and what there is instead."""
    try:
        verify(place)
    except CheckpointError as error:
        others = [step_of(path) for path in steps_of(place.parent) if path != place and is_whole(path)]
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
