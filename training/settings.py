"""The settings of a run: those of a command line; of a resumed run, the stored ones with the
changes of this command line."""

import json
import math
import os
from dataclasses import asdict
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from configs.cli import print
from configs.compose import CONFIGS, key_of, read_yaml, to_config
from configs.parts import load_parts
from configs.registry import build, flatten
from configs.schema import Config
from data.corpus import build_data, with_objective
from data.disk import filesize
from data.tokenizers.train import TOKENIZERS
from model.adapt import adapt
from model.checkpoint import RUNS, check_code, did_you_mean_run, list_runs, read_config
from model.transformer import build_model
from training.finetune import fine_tuned
from training.metrics import check_metrics
from training.optimizer import OPTIMIZERS
from training.run_folder import code_hashes
from training.schedule import build_schedule

# what a run is; the rest, such as its length and its learning rate, may change when it is resumed
FIXED = (
    "model.",
    "tokenizer.",
    "data.",
    "objective.",
    "adapt.",
    "ema.",
    "seed",
    "init_from",
    "train.batch_size",
    "optimizer.kind",
)
# may change without a word
UNTOLD = ("name", "resume", "dry_run", "debug", "data.cache")


def read_settings(node: DictConfig) -> tuple[Config, dict[str, Any]]:
    """(the config of a run; its origin, for config.yaml: the option of each config group, the
    overrides of the command line, and the hashes of the code)"""
    load_parts(node.parts)
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    keys = list(map(key_of, overrides))
    choices = {}
    for group, option in hydra.runtime.choices.items():
        if not group.startswith("hydra/"):
            choices[group] = option
    origin: dict[str, Any] = {"choices": choices, "overrides": overrides, "code": code_hashes()}
    if node.resume and is_resumable(node):
        config, origin = resumed(node, keys, origin)
    elif node.init_from is not None:
        config, origin["choices"] = fine_tuned(node, keys, choices)
    else:
        config = to_config(node)
        if "base" in config.adapt:  # of kinds that train a part
            raise ValueError("adapt= trains a part of a trained model: add init_from=")
    config = with_objective(config)
    check_parts(config)
    return config, origin


def is_resumable(node: DictConfig) -> bool:
    if node.name is None:
        runs = list_runs()
        newest = f"the newest run is {runs[-1].name}" if runs else f"{RUNS} has no run yet"
        raise ValueError(f"resume= needs a name=...; {newest}")
    run = RUNS / str(node.name)
    if (run / "config.yaml").exists():
        return True
    if node.resume is True:
        hint = did_you_mean_run(run)
        raise ValueError(f"there is no run {run}{hint}; resume=auto would start it")
    return False


def resumed(
    node: DictConfig, keys: list[str], origin: dict[str, Any]
) -> tuple[Config, dict[str, Any]]:
    """(the stored settings, with the values of this command line laid over them; the origin of
    both)"""
    run = RUNS / node.name
    stored = read_config(run)
    check_code(run, stored, origin["code"])
    choices = stored.pop("choices")
    overrides = stored.pop("overrides")
    stored.pop("code", None)
    known = flatten(stored)
    add_new_settings(stored)
    changed = OmegaConf.create(stored)
    # as stored, with today's default of what did not exist then
    before = flatten(asdict(to_config(changed)))
    for key in sorted(before.keys() - known):
        print(f"{key} is new since this run was started, and is {show(before[key])}")

    options = origin["choices"]
    chosen = {key: options[key] for key in keys if key in options}
    fixed = chosen.keys() - {"schedule"}  # groups, which are only compared, below
    for key in keys:
        if key not in fixed:
            OmegaConf.update(changed, key, OmegaConf.select(node, key), merge=False)
    config = to_config(changed)

    # the options of groups, such as optimizer, and all settings, such as optimizer.lr
    after = chosen | flatten(asdict(config))
    dropped = before.keys() - after.keys()  # such as the weight of a source
    after |= {key: None for key in sorted(dropped) if key.startswith(FIXED)}
    before |= choices
    for key, new in after.items():
        old = before.get(key)
        if new == old or key in UNTOLD:
            continue
        is_fixed = key.startswith(FIXED) or key in fixed
        # the base of adapt= may be moved: its weights are compared
        is_moved = key == "init_from" and "base" in config.adapt
        if is_fixed and not is_moved:
            change = f"{key} was {show(old)} in this run and is now {show(new)}"
            raise ValueError(f"{change}; it cannot change: remove it, or start a new name=")
        print(f"{key} was {show(old)} and is now {show(new)}")
    all_overrides = list(dict.fromkeys(overrides + origin["overrides"]))
    return config, origin | {"choices": choices | chosen, "overrides": all_overrides}


def add_new_settings(stored: dict[str, Any]) -> None:
    """Those that an older run lacks have today's default."""
    usual = read_yaml(CONFIGS / "train.yaml")
    del usual["defaults"], usual["hydra"]
    for name, default in usual.items():
        if isinstance(default, dict):
            stored[name] = default | stored.get(name, {})
        else:
            stored.setdefault(name, default)


def check_parts(config: Config) -> None:
    """Refuse parts that cannot be built, or a model that is too large, before any text is read."""
    with torch.device("meta"):
        model = build_model(config.model, 256)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    tokens = config.train.batch_size * config.model.context_length
    batch = 3 * 8 * tokens  # three tensors of ids
    memory = host_memory()
    if weights + batch > memory and not config.dry_run:
        sizes = f"the weights need {filesize(weights)}, a batch {filesize(batch)}"
        hint = "choose a smaller size= or train.batch_size"
        raise MemoryError(f"{sizes}, and the memory is {filesize(memory)}; {hint}")
    adapt(model, config.adapt)
    build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    build_data(config)
    check_metrics(config.metrics.names)
    if not config.init_from and config.tokenizer.get("kind") != "hub":  # they bring one
        build("tokenizer", TOKENIZERS, config.tokenizer, {})
    train = config.train
    is_timed = {train.steps, train.tokens, train.epochs} == {None}  # train.minutes alone ends it
    build_schedule(config.schedule, math.inf if is_timed else train.steps)


def host_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def show(value: Any) -> str:
    """As it is written on a command line."""
    return json.dumps(value).strip('"')
