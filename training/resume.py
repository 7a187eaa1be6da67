"""Resume: which run a command line continues, and its settings, the stored ones with the changes of
this command line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from configs.cli import print0, report
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
# groups of which another option may be chosen, such as schedule=cosine
CHANGEABLE_GROUPS = {"schedule"}
# may change without a message
UNTOLD = ("name", "resume", "dry_run", "debug", "data.cache")


def is_resumable(name: str | None, resume: bool | str) -> bool:
    if name is None:
        runs = list_runs()
        newest = f"the newest run is {runs[0].name}" if runs else f"{RUNS} has no run yet"
        raise ValueError(f"resume= needs a name=...; {newest}")

    run = RUNS / name
    if (run / "config.yaml").exists() or list_checkpoints(run):
        return True
    if resume is True:
        raise ValueError(f"there is no run {run}{similar_run(run)}; resume=auto would start it")
    return False


def place_in_sweep(node: DictConfig, hydra: Any) -> tuple[str, bool]:
    """Returns (the name of this run of a sweep; whether it is resumed: a repeated sweep continues
    its unfinished runs)."""
    if node.resume or node.name:
        error = ValueError("-m cannot be combined with name= or resume=: each run gets a new name")
        raise SystemExit(report(error))  # Hydra would go on with the next run

    run = Path(hydra.runtime.output_dir)
    home = RUNS.absolute()
    if home not in run.parents:
        raise ValueError(f"hydra.sweep.dir is {hydra.sweep.dir}; choose a folder in {RUNS}/")

    name = run.relative_to(home).as_posix()
    is_started = (run / "config.yaml").exists()
    if is_started and read_config(RUNS / name)["overrides"] != list(hydra.overrides.task):
        raise ValueError(
            f"{RUNS / name} already exists, with other settings; choose another hydra.sweep.dir"
        )
    return name, is_started


def resumed(node: DictConfig, name: str, origin: dict) -> tuple[Config, dict]:
    """Returns (the stored settings, overridden by the values of this command line; the origin of
    both). node, origin: what Hydra composed from this command line alone."""
    settings, before, old = stored_settings(RUNS / name, origin["code"])
    keys = list(map(key_of, origin["overrides"]))

    # the options of groups; one that is fixed is only compared: its values may have been overridden
    options = {key: origin["choices"][key] for key in keys if key in origin["choices"]}
    fixed_groups = tuple(options.keys() - CHANGEABLE_GROUPS)
    tell_changes({group: old["choices"].get(group) for group in options}, options, fixed_groups)

    for key in keys:
        if key not in fixed_groups:
            OmegaConf.update(settings, key, OmegaConf.select(node, key), merge=False)
    config = to_config(settings)
    tell_changes(before, flatten(asdict(config)), FIXED)

    overrides = list(dict.fromkeys(old["overrides"] + origin["overrides"]))
    choices = old["choices"] | options
    return config, old | origin | {"choices": choices, "overrides": overrides}


def stored_settings(run: Path, code: dict) -> tuple[Any, dict, dict]:
    """Returns (the settings of a run, with today's defaults for those that did not exist when it
    began; the same as {dotted key: value}; their origin). code: the hashes of today."""
    stored = read_config(run)
    if stored["tokenizer"]["kind"] == "hub" and stored["init_from"] is None:
        raise CheckpointError(f"{run} was imported and has not been trained; use init_from={run}")
    check_code(run, stored, code)
    origin = {key: stored.pop(key, None) for key in ("choices", "overrides", "code", "frozen")}

    usual = read_yaml(CONFIGS / "train.yaml")
    del usual["defaults"], usual["hydra"]
    if stored["init_from"]:  # the model of a run that it started from has other settings
        del usual["model"]
    settings: Any = OmegaConf.merge(usual, stored)

    flat = flatten(asdict(to_config(settings)))
    for key in sorted(flat.keys() - flatten(stored)):
        print0(f"{key} was added after this run was started, and is {show(flat[key])}")
    return settings, flat, origin


def tell_changes(before: dict, after: dict, fixed: tuple[str, ...]) -> None:
    """Print which values have changed, and refuse a change of one whose key starts with one of
    `fixed`."""
    for key in after | before:  # also what was dropped, such as the weight of a source
        old = before.get(key)
        new = after.get(key)
        if new == old or key in UNTOLD:
            continue
        if key.startswith(fixed):
            change = f"{key} was {show(old)} in this run and is now {show(new)}"
            raise ValueError(f"{change}; it cannot change: remove it, or start a new name=")
        print0(f"{key} was {show(old)} and is now {show(new)}")


def show(value: Any) -> str:
    """A value as it is written on a command line."""
    return json.dumps(value, ensure_ascii=False).strip('"')
