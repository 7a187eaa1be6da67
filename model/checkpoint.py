"""Checkpoints: runs/name/checkpoints/step-########, a folder of safetensors and JSON that is
renamed into place once it is complete and on the disk. Reading one runs no code."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors import safe_open
from torch import Tensor, nn

from configs.cli import expand_user, warn
from configs.errors import CheckpointError, HubError
from configs.parts import LOADED, own_code
from configs.registry import from_dict
from configs.schema import Config, ModelConfig
from data.disk import atomic_folder, atomic_write, sync_file, sync_folder, write_synced
from data.tokenizers.tokenizer import Tokenizer, tokenizer_from_state
from model.adapt import adapt, merge_adapters
from model.hub.files import is_hf_folder, resolve_folder
from model.transformer import build_model
from model.weights import (
    Tensors,
    assign_weights,
    model_tensors,
    read_json,
    rebuilt,
    sha256,
    trained_parameters,
    write_tensors,
)

RUNS = Path("runs")
STEP = "step-????????"  # a pattern for glob
FORMAT = 3


def step_name(step: int) -> str:
    return f"step-{step:08}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def list_checkpoints(run: Path) -> list[Path]:
    """Newest first."""
    return sorted((run / "checkpoints").glob(STEP), reverse=True)


# ---- write


def save(run: Path, step: int, tensors: dict[str, Tensors], state: dict[str, Any]) -> None:
    """tensors: those of each file, such as {"model": {name: tensor}}."""
    final = run / "checkpoints" / step_name(step)
    final.parent.mkdir(exist_ok=True)
    sync_folder(run)  # the new folder, and logs that are new
    with atomic_folder(final) as draft:
        for name, named in tensors.items():
            write_tensors(draft / f"{name}.safetensors", named)
        write_synced(draft / "state.json", json.dumps({"format": FORMAT, "step": step} | state))
        manifest = {path.name: sync_file(path) for path in sorted(draft.iterdir())}
        write_synced(draft / "manifest.json", json.dumps(manifest, indent=1))
        if final.exists():  # it was saved before, but the disk reported an error
            remove(final)


def remove(checkpoint: Path) -> None:
    """Rename, then delete: a checkpoint that is half deleted must not look like a complete one."""
    trash = checkpoint.with_suffix(".trash")
    os.rename(checkpoint, trash)
    sync_folder(trash.parent)
    shutil.rmtree(trash)


def clean_up(run: Path) -> None:
    """Remove what a killed run was writing or deleting."""
    for pattern in ("*.draft", "*.trash"):
        for path in (run / "checkpoints").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def set_aside_newer(run: Path, step: int) -> None:
    """Checkpoints newer than the one that a run resumes from, for they are damaged."""
    for checkpoint in list_checkpoints(run):
        if step_of(checkpoint) > step:
            aside = checkpoint.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(checkpoint, aside)


def prune(run: Path, keep: int) -> None:
    """Delete all but the newest checkpoints and the best."""
    best = read_best(run)
    for checkpoint in list_checkpoints(run)[keep:]:
        if checkpoint.name != best:
            remove(checkpoint)


def mark_best(run: Path, step: int) -> None:
    atomic_write(run / "checkpoints" / "best", step_name(step) + "\n")


def write_metadata(
    run: Path, config: Config, origin: dict[str, Any], tokenizer: Tokenizer, environment: str
) -> None:
    """What a run needs besides its weights. origin: the choices, an option of each config group,
    and the overrides that the config was composed from, and the hashes of the code."""
    plain = {
        **asdict(config),
        "resume": False,
        "choices": {},  # of an imported run, as the next two
        "overrides": [],
        "code": None,
        **origin,
    }
    atomic_write(run / "tokenizer.json", json.dumps(tokenizer.state()))
    atomic_write(run / "environment.txt", environment)
    atomic_write(run / "config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


# ---- find


def list_runs() -> list[Path]:
    """The runs that have a checkpoint, also those of sweeps; the last has the newest."""
    found = [*RUNS.glob(f"*/checkpoints/{STEP}"), *RUNS.glob(f"*/*/checkpoints/{STEP}")]
    oldest_first = sorted(found, key=os.path.getmtime)
    return list(dict.fromkeys(path.parents[1] for path in oldest_first))


def newest_run() -> Path:
    runs = list_runs()
    if not runs:
        raise CheckpointError(f"{RUNS}/ has no run with a checkpoint; train one: python train.py")
    return runs[-1]


def did_you_mean_run(place: str | Path) -> str:
    """A hint at the run with the nearest name, or nothing."""
    runs = {run.name: run for run in list_runs()}
    near = get_close_matches(Path(place).name, runs, 1)
    return f" (did you mean {runs[near[0]]}?)" if near else ""


def read_best(run: Path) -> str | None:
    """The name of the best checkpoint."""
    path = run / "checkpoints" / "best"
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def newest_undamaged(run: Path) -> Path | None:
    """The newest undamaged checkpoint; None if there is none at all."""
    checkpoints = list_checkpoints(run)
    for checkpoint in checkpoints:
        try:
            verify(checkpoint)
            return checkpoint
        except CheckpointError as error:
            warn(f"{error}; going back to the checkpoint before it")
    if checkpoints:
        raise CheckpointError(f"no checkpoint of {run} is undamaged")
    return None


def find(run: Path, which: str) -> Path:
    """The checkpoint `which`: latest, best or a step."""
    newest = newest_undamaged(run) if which == "latest" else None
    if newest:
        return newest

    name = read_best(run) if which == "best" else f"step-{which:0>8}"
    checkpoint = run / "checkpoints" / str(name)
    if not checkpoint.exists():
        known = ", ".join(str(step_of(path)) for path in list_checkpoints(run)) or "none"
        raise CheckpointError(f"{run} has no checkpoint {which!r}; its steps are: {known}")
    verify(checkpoint)
    return checkpoint


def verify(checkpoint: Path) -> None:
    """Compare the hash of every file with the one in manifest.json."""
    for name, expected in read_json(checkpoint / "manifest.json").items():
        path = checkpoint / name
        found = None
        with suppress(OSError), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise CheckpointError(f"{path} is damaged: it is not the file that was saved")


# ---- read


def read_config(run: Path, hint: str = "") -> dict[str, Any]:
    """The settings of a run, and its choices and overrides. hint: of a folder that is missing."""
    path = run / "config.yaml"
    if not run.exists():
        raise CheckpointError(f"there is no folder {run}{did_you_mean_run(run)}{hint}")
    if not path.exists():
        hint = "python -m model.hub import makes a run of a Hugging Face folder"
        raise CheckpointError(f"{run} is not the folder of a run: it has no config.yaml; {hint}")
    with suppress(OSError, ValueError, AttributeError, yaml.YAMLError):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        if {"choices", "overrides"} <= config.keys():
            return config
    raise CheckpointError(f"{path} is damaged, or was written by another version")


def check_code(run: Path, config: dict[str, Any], code: dict[str, str]) -> None:
    """Refuse a run without the parts that it was trained with; tell which code has changed since."""
    place = config.get("parts")
    if place is not None and not LOADED:
        hint = f"add parts={place} to train.py, --parts {place} to any other command"
        raise ValueError(f"{run} was trained with {Path(place).name}: {hint}")
    known = config.get("code") or {}  # an imported run has none
    changed = [name for name, digest in code.items() if known.get(name, digest) != digest]
    if changed:
        warn(f"the code of {', '.join(changed)} has changed since {run} was started")


def model_config(node: dict[str, Any]) -> ModelConfig:
    return from_dict(ModelConfig, node, "model.")


def read_tokenizer(run: Path) -> Tokenizer:
    return tokenizer_from_state(read_json(run / "tokenizer.json"))


def read_state(checkpoint: Path) -> dict[str, Any]:
    state = read_json(checkpoint / "state.json")
    if state.get("format") != FORMAT:
        reads = f"this version reads {FORMAT}; continue the run with the version that wrote it"
        raise CheckpointError(f"{checkpoint} has format {state.get('format')!r}, and {reads}")
    return state


def read_tensors(path: Path, expected: Tensors) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) one by one, for all may be too large; names and shapes are the expected
    ones."""
    wanted = {name: list(tensor.shape) for name, tensor in expected.items()}
    with safe_open(path, "pt") as file:
        stored = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
        if stored != wanted:
            raise CheckpointError(f"{path} has other tensors than a model of config.yaml")
        for name in stored:
            yield name, file.get_tensor(name).clone()  # the file is mapped, and may be deleted


class LoadedRun(NamedTuple):
    model: nn.Module
    tokenizer: Tokenizer
    config: dict[str, Any]
    step: int  # at which it was saved

    @property
    def is_headless(self) -> bool:
        """Whether it is an encoder that was imported without a head."""
        is_imported = self.config.get("code") is None  # the hash of the code that trained it
        return is_imported and self.config["model"]["head"].get("mlm_transform") is None


def load_run(place: str | Path, which: str = "latest", merge: bool = True) -> LoadedRun:
    """The model and tokenizer of a run, for sampling, fine-tuning and export. merge: adapters are
    added to the weights that they adapt."""
    run = expand_user(place)
    config = read_config(run)
    check_code(run, config, own_code())
    tokenizer = read_tokenizer(run)
    checkpoint = find(run, which)
    sizes = model_config(config["model"])
    node = config.get("adapt", {})
    if "base" in node:
        model, _ = load_base(config["init_from"], sizes, node)
        adapt(model, node)
    else:
        with torch.device("meta"):  # no memory for its weights, which come from the file
            model = build_model(sizes, tokenizer.vocab_size)
    tensors = dict(read_tensors(checkpoint / "model.safetensors", model_tensors(model)))
    average = checkpoint / "ema.safetensors"
    if average.exists():  # it is what the run evaluated
        tensors |= read_tensors(average, trained_parameters(model))
    assign_weights(model, tensors)
    if merge:
        merge_adapters(model)
    return LoadedRun(model.eval(), tokenizer, config, step_of(checkpoint))


# ---- what init_from loads, of a run or a Hugging Face folder


def init_settings(place: str) -> dict[str, Any]:
    """Its settings, among them model and tokenizer."""
    from model.hub.convert import read_hf_config
    from model.hub.spec import config_from_spec

    if is_hf_folder(place):
        _, spec, _ = read_hf_config(resolve_folder(place))
        return {"model": asdict(config_from_spec(spec)), "tokenizer": {"kind": "hub"}}
    run = expand_user(place)
    config = read_config(run, "; a model of the Hub has a name such as openai-community/gpt2")
    check_code(run, config, own_code())
    return config


def init_tokenizer(place: str) -> Tokenizer:
    from model.hub import tokenizer as hub

    if not is_hf_folder(place):
        return hub.drop_template(read_tokenizer(expand_user(place)))
    folder = resolve_folder(place)
    return hub.drop_template(hub.read_tokenizer(folder, read_json(folder / "config.json")))


def init_run(place: str, which: str = "latest") -> tuple[nn.Module, Tokenizer, int]:
    """(model, tokenizer, step); a Hugging Face folder has no checkpoints, and is at step 0."""
    from model.hub.convert import load_hf
    from model.hub.tokenizer import drop_template

    step = 0
    if not is_hf_folder(place):
        model, tokenizer, _, step = load_run(place, which)
    elif which == "latest":
        model, tokenizer, _ = load_hf(place)
    else:
        raise CheckpointError(f"{place} is a Hugging Face folder: it has no checkpoint {which!r}")
    return model.train(), drop_template(tokenizer), step


def load_base(place: str, config: ModelConfig, node: dict[str, Any]) -> tuple[nn.Module, Tokenizer]:
    """What adapt= trains a part of. The first time, the sha256 of all weights becomes node["base"];
    from then on others are refused. A run may have gone on since: its checkpoints are tried in
    turn."""
    checkpoints = list_checkpoints(expand_user(place))
    older = [str(step_of(checkpoint)) for checkpoint in checkpoints[1:]]
    for which in ("latest", *older):
        try:
            model, tokenizer, _ = init_run(place, which)
        except (CheckpointError, HubError) as error:
            hint = "if it was moved, resume this run with init_from= and its new place"
            raise CheckpointError(f"the base of this run: {error}; {hint}") from None
        found = sha256(model)
        if node["base"] in (None, found):
            node["base"] = found
            return rebuilt(model, config), tokenizer
    reason = "other weights than when a part of them was trained; restore them"
    raise CheckpointError(f"{place} has {reason}")
