"""The settings of a resumed run: the stored ones, with the changes of this command line."""

import json
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from configs.cli import print
from configs.compose import CONFIGS, key_of, read_yaml, to_config
from configs.errors import CheckpointError
from configs.flat import flatten
from configs.schema import Config
from model.checkpoint import check_code, read_config
from model.runs import RUNS, list_checkpoints, list_runs, similar_run

# what defines a run; the rest, such as its length and learning rate, may change when it is resumed
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
    "eval.max_examples",  # the losses that choose the best checkpoint
)
# may change without a message
UNTOLD = ("name", "resume", "dry_run", "debug", "data.cache")


def resumed(node: DictConfig, name: str, origin: dict) -> tuple[Config, dict]:
    """Returns (the stored settings, overridden by the values of this command line; the origin of
    both)."""
    run = RUNS / name
    stored = read_config(run)
    if stored["tokenizer"]["kind"] == "hub" and stored["init_from"] is None:
        hint = f"use init_from={run}"
        raise CheckpointError(f"{run} was imported and has not been trained; {hint}")

    check_code(run, stored, origin["code"])
    choices = stored.pop("choices")
    overrides = stored.pop("overrides")
    frozen = stored.pop("frozen", None)
    stored.pop("code", None)

    known = flatten(stored)
    usual = read_yaml(CONFIGS / "train.yaml")
    del usual["defaults"], usual["hydra"]
    if stored["init_from"]:  # the model of a run that it started from has other settings
        del usual["model"]

    # as stored, with today's defaults for settings that did not exist then
    changed: Any = OmegaConf.merge(usual, stored)
    before = flatten(asdict(to_config(changed)))
    for key in sorted(before.keys() - known):
        print(f"{key} was added after this run was started, and is {show(before[key])}")

    keys = list(map(key_of, origin["overrides"]))
    options = origin["choices"]
    chosen = {key: options[key] for key in keys if key in options}
    fixed = chosen.keys() - {"schedule"}  # groups, which are only compared, below

    for key in keys:
        if key not in fixed:
            OmegaConf.update(changed, key, OmegaConf.select(node, key), merge=False)
    config = to_config(changed)

    # the options of groups, such as optimizer, and all settings, such as optimizer.lr
    after = chosen | flatten(asdict(config))
    before |= {key: choices.get(key) for key in chosen}
    for key in after | before:  # also what was dropped, such as the weight of a source
        old = before.get(key)
        new = after.get(key)
        if new == old or key in UNTOLD:
            continue

        if key.startswith(FIXED) or key in fixed:
            change = f"{key} was {show(old)} in this run and is now {show(new)}"
            raise ValueError(f"{change}; it cannot change: remove it, or start a new name=")
        print(f"{key} was {show(old)} and is now {show(new)}")

    all_overrides = list(dict.fromkeys(overrides + origin["overrides"]))
    merged = {"choices": choices | chosen, "overrides": all_overrides, "frozen": frozen}
    return config, origin | merged


def show(value: Any) -> str:
    """A value as it is written on a command line."""
    return json.dumps(value).strip('"')


def is_resumable(name: str | None, resume: bool | str) -> bool:
    if name is None:
        runs = list_runs()
        newest = f"the newest run is {runs[0].name}" if runs else f"{RUNS} has no run yet"
        raise ValueError(f"resume= needs a name=...; {newest}")

    run = RUNS / name
    if (run / "config.yaml").exists() or list_checkpoints(run):
        return True
    if resume is True:
        hint = similar_run(run)
        raise ValueError(f"there is no run {run}{hint}; resume=auto would start it")
    return False
