"""Opening: the folder of a run becomes a tokenizer and a model again. What lies there is data: it chooses no
code, names no path, and claims no more memory than it fills."""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn as nn
from omegaconf.errors import OmegaConfBaseException
from safetensors.torch import load_file

from data.tokenizer import Tokenizer
from model import build_model
from training.errors import CheckpointError
from training.stored import find_checkpoint, model_config, read_config, read_tokenizer, verify
from training.tensors import compare, filled, shapes


class Opened(NamedTuple):
    """A trained model, ready to be asked; the config of its run; the step at which it was saved."""

    model: nn.Module
    tokenizer: Tokenizer
    config: dict
    step: int


def open_run(folder, which="latest"):
    """which: latest, best, or a step that was saved."""
    folder = Path(folder)
    config, tokenizer = read_config(folder), read_tokenizer(folder)
    place = find_checkpoint(folder, which)
    verify(place)
    tensors = place / "model.safetensors"
    with torch.device("meta"):  # what the config asks for takes no memory until the file has shown to fill it
        model = make_model(config, tokenizer, most_layers=n_tensors(tensors))
    compare(tensors, model)
    return Opened(
        filled(model, load_file(tensors)).eval(), tokenizer, config, int(place.name.removeprefix("step-"))
    )


def make_model(config, tokenizer, most_layers):
    try:
        asked = model_config(config["model"])
        if max(asked.n_layers, asked.encoder.n_layers or 0) > most_layers:
            raise ValueError(f"{asked.n_layers} layers are more than the file has tensors")
        return build_model(asked, tokenizer.vocab_size)
    except (OmegaConfBaseException, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"config.yaml does not describe a model: {error}") from None


def n_tensors(path):
    return len(shapes(path))
