"""Checkpoints: finding, verifying and reading them. This executes no code from them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from safetensors import safe_open
from torch import Tensor, nn

from configs.cli import expand_user, warn
from configs.errors import CheckpointError
from configs.flat import Settings
from configs.parts import LOADED, own_code
from configs.registry import construct
from configs.schema import ModelConfig
from data.tokenizers.tokenizer import Tokenizer, tokenizer_from_state
from model.adapt import adapt, merge_adapters
from model.runs import FORMAT, FROZEN, list_checkpoints, read_best, sha256, similar_run, step_of
from model.transformer import build_model
from model.weights import (
    Tensors,
    assign_weights,
    frozen_tensors,
    model_tensors,
    read_json,
    trained_parameters,
)


class LoadedRun(NamedTuple):
    model: nn.Module
    tokenizer: Tokenizer
    config: Settings
    step: int  # of the checkpoint


def load_run(place: str | Path, which: str = "latest", merge: bool = True) -> LoadedRun:
    """Load the model and tokenizer of a run, for sampling, fine-tuning and export. merge: add
    adapters to the weights that they adapt."""
    folder = expand_user(place)
    config = read_config(folder)
    if config.get("parts"):
        check_code(folder, config, own_code())
    tokenizer = read_tokenizer(folder)
    checkpoint = find(folder, which)
    node = config.get("adapt", {"kind": "none"})
    is_adapted = node["kind"] != "none"
    model_config = construct("model.", ModelConfig, config["model"])

    with torch.device("meta"):  # allocates no weights: they come from the files
        model = build_model(model_config, tokenizer.vocab_size)
        if is_adapted:
            adapt(model, node)

    tensors = dict(read_tensors(checkpoint / "model.safetensors", model_tensors(model)))
    average = checkpoint / "ema.safetensors"
    if average.exists():  # the weights that the run evaluated
        tensors |= read_tensors(average, trained_parameters(model))
    if frozen := frozen_tensors(model):
        tensors |= read_frozen(folder, config, frozen)
    assign_weights(model, tensors)
    if is_adapted and merge:
        merge_adapters(model)
    return LoadedRun(model.eval(), tokenizer, config, step_of(checkpoint))


def find(folder: Path, which: str) -> Path:
    """The checkpoint `which`: latest, best or a step."""
    if which == "latest" and (newest := newest_undamaged(folder)):
        return newest
    return find_named(folder, which)


def find_named(folder: Path, which: str) -> Path:
    """best or a step; the latest of a folder without checkpoints is an error, too."""
    name = read_best(folder) if which == "best" else f"step-{which:0>8}"
    checkpoint = folder / "checkpoints" / str(name)
    if not checkpoint.exists():
        known = ", ".join(str(step_of(path)) for path in list_checkpoints(folder)) or "none"
        raise CheckpointError(f"{folder} has no checkpoint {which!r}; its steps are: {known}")

    verify(checkpoint)
    return checkpoint


def newest_undamaged(folder: Path) -> Path | None:
    """The newest undamaged checkpoint; None if there is none at all."""
    checkpoints = list_checkpoints(folder)

    for checkpoint in checkpoints:
        try:
            verify(checkpoint)
            return checkpoint
        except CheckpointError as error:
            warn(f"{error}; using the checkpoint before it")

    if checkpoints:
        raise CheckpointError(f"no checkpoint of {folder} is undamaged")
    return None


def verify(checkpoint: Path) -> None:
    """Compare the hash of every file with the one in manifest.json."""
    for name, expected in read_json(checkpoint / "manifest.json").items():
        verify_file(checkpoint / name, expected)


def verify_file(path: Path, expected: str | None) -> None:
    if expected is None or sha256(path) != expected:
        raise CheckpointError(f"{path} is damaged: its checksum does not match")


def read_config(folder: Path, hint: str = "") -> Settings:
    """The settings of a run, with its choices and overrides. hint: for a missing folder."""
    path = folder / "config.yaml"
    if not folder.exists():
        raise CheckpointError(f"there is no folder {folder}{similar_run(folder)}{hint}")
    if not path.exists():
        other = "python -m model.hub import imports a Hugging Face folder"
        raise CheckpointError(
            f"{folder} is not the folder of a run: it has no config.yaml; {other}"
        )

    with suppress(OSError, ValueError, AttributeError, yaml.YAMLError):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        if {"choices", "overrides"} <= config.keys():
            return config
    raise CheckpointError(f"{path} is damaged, or was written by another version")


def check_code(folder: Path, config: Settings, code: dict[str, str]) -> None:
    """Refuse a run that this code cannot load; warn about code that has changed since."""
    place = config.get("parts")
    if place is not None and not LOADED:
        hint = f"add parts={place} to train.py, --parts {place} to any other command"
        raise ValueError(f"{folder} was trained with {Path(place).name}: {hint}")

    known = config.get("code") or {}  # an imported run has none
    changed = [name for name, digest in code.items() if known.get(name, digest) != digest]
    if changed:
        warn(f"the code of {', '.join(changed)} has changed since {folder} was started")


def read_tokenizer(folder: Path) -> Tokenizer:
    return tokenizer_from_state(read_json(folder / "tokenizer.json"))


def read_state(checkpoint: Path) -> dict:
    state = read_json(checkpoint / "state.json")
    if state.get("format") != FORMAT:
        reads = f"this version reads {FORMAT}; continue the run with the version that wrote it"
        raise CheckpointError(f"{checkpoint} has format {state.get('format')!r}, and {reads}")
    return state


def read_tensors(path: Path, expected: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) one by one: a run that resumes copies each into place. Names and shapes
    must be the expected ones."""
    wanted = {name: list(tensor.shape) for name, tensor in expected.items()}

    with safe_open(path, "pt") as file:
        stored = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
        if stored != wanted:
            raise CheckpointError(f"{path} does not have the tensors of the model in config.yaml")

        for name in stored:
            yield name, file.get_tensor(name).clone()  # the file is mapped and may be deleted


def read_frozen(folder: Path, config: Settings, expected: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Like read_tensors, for the weights that are in no checkpoint."""
    verify_file(folder / FROZEN, config.get("frozen"))
    return read_tensors(folder / FROZEN, expected)
