"""The settings of a run: those of a command line; of a resumed run, the stored ones with the
changes of this command line."""

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_type_hints

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from configs.cli import print
from configs.compose import to_config
from configs.registry import flatten
from configs.schema import Config
from model.checkpoint import RUNS, did_you_mean_run, list_runs, read_config
from training.finetune import fine_tuned

# what a run is; the rest, such as its length and its learning rate, may change when it is resumed
FIXED = (
    "model.",
    "tokenizer.",
    "data.",
    "objective.",
    "seed",
    "init_from",
    "train.batch_size",
    "optimizer.kind",
)
UNTOLD = ("name", "resume", "dry_run", "debug", "data.cache")
LENGTHS = ("train.steps", "train.tokens", "train.epochs", "train.minutes")


def read_settings(node: DictConfig) -> tuple[Config, dict[str, Any]]:
    """(the config of a run; of its command line, the option of each config group and the
    overrides)"""
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN and (node.resume or node.name is not None):
        setting = "resume" if node.resume else "name"
        raise ValueError(f"{setting}= and -m: each run of a sweep is new and has a name of its own")
    overrides = list(hydra.overrides.task)
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    choices = {k: v for k, v in hydra.runtime.choices.items() if not k.startswith("hydra/")}
    command_line = {"choices": choices, "overrides": overrides}
    if node.resume and is_resumable(node):
        return resumed(node, keys, command_line)
    if node.init_from is not None:
        return fine_tuned(node, keys, choices), command_line
    return to_config(node), command_line


def is_resumable(node: DictConfig) -> bool:
    if node.name is None:
        runs = list_runs()
        newest = f"the newest run is {runs[-1].name}" if runs else f"{RUNS} has no run yet"
        raise ValueError(f"resume={str(node.resume).lower()} needs a name=...; {newest}")
    run = RUNS / str(node.name)
    if (run / "config.yaml").exists():
        return True
    if node.resume is True:
        hint = did_you_mean_run(run)
        raise ValueError(f"there is no run {run}{hint}; resume=auto would start it")
    return False


def resumed(
    node: DictConfig, keys: list[str], command_line: dict[str, Any]
) -> tuple[Config, dict[str, Any]]:
    """The stored settings, with the values of this command line laid over them."""
    stored = read_config(RUNS / node.name)
    before = flatten(stored)
    choices, old_choices = command_line["choices"], stored.pop("choices")
    old_overrides = stored.pop("overrides")
    defaults: Any = OmegaConf.to_container(node, resolve=True)
    changed = OmegaConf.create(with_new_settings(Config, stored, defaults))
    for key in keys:
        if key not in choices:
            OmegaConf.update(changed, key, OmegaConf.select(node, key))
        elif key == "schedule":
            changed.schedule = node.schedule
            old_choices[key] = choices[key]
        elif choices[key] != old_choices.get(key):
            refuse(key, old_choices.get(key), choices[key])
    if set(LENGTHS) & set(keys):  # a length replaces the stored one
        for key in set(LENGTHS) - set(keys):
            OmegaConf.update(changed, key, None)
    config = to_config(changed)
    for key, new in flatten(asdict(config)).items():
        old = before.get(key, new)
        if old == new or key in UNTOLD:
            continue
        if key.startswith(FIXED):
            refuse(key, old, new)
        print(f"{key} was {show(old)} and is now {show(new)}")
    new_overrides = [o for o in command_line["overrides"] if o not in old_overrides]
    return config, {"choices": old_choices, "overrides": [*old_overrides, *new_overrides]}


def with_new_settings(
    schema: Any, stored: dict[str, Any], defaults: dict[str, Any]
) -> dict[str, Any]:
    """What an older run lacks takes today's default."""
    hints = get_type_hints(schema)
    for field in fields(schema):
        name = field.name
        if name not in stored:
            stored[name] = defaults[name]
            print(f"{name} is new since this run was started, and is {show(defaults[name])}")
        elif is_dataclass(hints[name]):
            stored[name] = with_new_settings(hints[name], stored[name], defaults[name])
    return stored


def refuse(key: str, old: Any, new: Any) -> None:
    change = f"{key} was {show(old)} in this run and is now {show(new)}"
    raise ValueError(f"{change}; it cannot change: remove it, or start a new name=")


def show(value: Any) -> str:
    """As it is written on a command line."""
    return json.dumps(value).strip('"')
