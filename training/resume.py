"""Resume: the settings a resumed run may change, and the checkpoint it continues from."""

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NamedTuple

import torch

from configs.compose import CONFIGS, compose, compose_raw, did_you_mean, flatten, parse_overrides, to_config
from configs.errors import CheckpointError, DataError
from configs.registry import check_value
from data.corpus import load
from model.checkpoint.files import (
    list_checkpoints,
    read_config,
    read_pointer,
    read_state,
    read_tokenizer,
    refuse_links,
    step_dir,
    step_of,
    verify,
)
from model.checkpoint.load import check_specs, iter_tensors
from model.checkpoint.save import model_tensors
from training.run_folder import check_name


class StoredCheckpoint(NamedTuple):
    """A checkpoint that was found whole, what its state.json says, and whether it is the best."""

    place: Path
    state: dict
    is_best: bool


def latest_whole(folder, dist, device):
    """The newest checkpoint of a run that is whole, the same one in all processes; None where there is none
    at all. Those that are not are told by name."""
    step = find(folder) if dist.is_main else 0
    [step] = dist.all_reduce_sum(step if dist.is_main else 0, device=device)
    if step < 0:
        return None
    place = folder / "checkpoints" / step_dir(int(step))
    return StoredCheckpoint(place, read_state(place), read_pointer(place.parent, "best") == place.name)


def find(folder):
    """Its step, or -1."""
    place, reasons = folder / "checkpoints", []
    if not place.is_dir():
        return -1
    for path in list_checkpoints(place):
        try:
            verify(path)
            read_state(path)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            print(f"warning: {reason}; going back to {path.name}", file=sys.stderr)
        return step_of(path)
    if reasons:
        raise CheckpointError(f"no checkpoint of {folder} is whole: {'; '.join(reasons)}")
    return -1


def restore(run):
    """Weights, optimizer and scaler of the checkpoint from which the run goes on, tensor by tensor."""
    place, state = run.stored.place, run.stored.state
    weights, remembered = place / "model.safetensors", place / "optimizer.safetensors"
    check_specs(weights, model_tensors(run.model), "model")
    stepped = state.step > state.skipped_steps
    check_specs(remembered, run.optimizer.expected_state() if stepped else {}, "optimizer")
    own = run.model.state_dict()
    with torch.no_grad():
        for name, tensor in iter_tensors(weights):
            own[name].copy_(tensor)
    run.optimizer.load(dict(iter_tensors(remembered)))
    if run.scaler.is_enabled() and state.scaler:
        run.scaler.load_state_dict(state.scaler)


# what a resumed run may change: always, only if resume_allow names it, or never
FREE = (
    "name",
    "resume",
    "resume_allow",
    "device",
    "dry_run",
    "debug",
    "data.cache",
    "log",
    "eval",
    "checkpoint",
    "sample",
    "wandb",
)
FREE += ("train.steps", "train.tokens", "train.epochs", "train.minutes", "train.patience")
WITH_RESUME_ALLOW = ("data", "objective", "optimizer", "schedule", "precision", "compile")
WITH_RESUME_ALLOW += ("train.micro_batch_size", "train.grad_clip")
FIXED = ("seed", "init_from", "model", "tokenizer", "objective.kind", "optimizer.kind", "train.batch_size")


def change_policy(key):
    """free, allow or fixed: that of the longest prefix of the key."""
    named = (
        dict.fromkeys(FREE, "free")
        | dict.fromkeys(WITH_RESUME_ALLOW, "allow")
        | dict.fromkeys(FIXED, "fixed")
    )
    matching = [name for name in named if key == name or key.startswith(f"{name}.")]
    return named[max(matching, key=len)] if matching else None


def resolve_config(overrides, runs_dir, init_config=None):
    """(the Config that a command line asks for, all overrides behind it); with resume, of the run it continues."""
    own = compose_raw(tuple(o for o in overrides if re.match(r"[+~]*(name|resume)=", o)))
    resume = check_value("resume", own["resume"], bool | Annotated[str, ("auto",)])
    if not resume:
        config = compose(overrides, init_config)
        if config.resume_allow:
            raise ValueError("resume_allow has an effect only with resume=true; remove it")
        return config, list(overrides)
    if own["name"] is None:
        raise ValueError(f"resume={str(resume).lower()} needs a name=...{newest_run_hint(runs_dir)}")
    check_name(own["name"], runs_dir, resume)
    folder = runs_dir / own["name"]
    refuse_links(folder)
    if not (folder / "config.yaml").exists():
        if list_checkpoints(folder / "checkpoints"):
            raise CheckpointError(f"{folder} has checkpoints but no config.yaml, so it cannot be resumed")
        if resume == "auto":
            return compose(overrides, init_config), list(overrides)
        near = did_you_mean(own["name"], [path.parent.name for path in runs_dir.glob("*/config.yaml")])
        raise ValueError(f"there is no run {folder}{near}; resume=auto would start it")
    return merge_overrides(folder, overrides)


def newest_run_hint(runs_dir):
    newest = max(runs_dir.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime, default=None)
    return (
        f"; the newest run is name={newest.parent.name}" if newest else f"; there is no run in {runs_dir} yet"
    )


def merge_overrides(folder, overrides):
    """The stored config, changed by what the new overrides change in the composition of the stored ones."""
    stored = read_config(folder)
    old = stored.pop("overrides", [])
    for override in overrides:
        if override[0] in "+~":
            raise ValueError(f"{override}: a resumed run keeps its set of settings; change one by key=value")
    parse_overrides(overrides)
    own = {"resume": False, "resume_allow": []}
    try:
        before = flatten(asdict(to_config(stored | own)))
        base = composed(old, stored)
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.yaml'} does not describe a run: {error}") from None
    kept = [o for o in old if not any(replaces(new, o) for new in overrides)]
    wanted, typed = composed([*kept, *overrides], stored), {o.partition("=")[0] for o in overrides}
    after = before | {key: v for key, v in wanted.items() if key in typed or v != base.get(key, ...)}
    for key in base.keys() - wanted.keys():
        after.pop(key, None)
    config = to_config(unflatten(after))
    check_changes(before, flatten(asdict(config)), config.resume_allow)
    return config, [o for o in (*kept, *overrides) if not re.match(r"resume(_allow)?=", o)]


def composed(overrides, stored):
    origin = {part: stored.get(part, {}) for part in ("model", "tokenizer")}
    return flatten(asdict(compose(overrides, lambda place: origin)))


def replaces(new, old):
    """Whether an override makes an older one void: the same key, or a setting of a part that is chosen anew."""
    key, older = (override.partition("=")[0] for override in (new, old))
    group, _, package = key.partition("@")
    path = CONFIGS / group
    if path.is_dir() and not package:
        header = re.match(r"# @package ([\w.]+)", next(path.glob("*.yaml")).read_text(encoding="utf-8"))
        package = header[1]
    return key == older or (path.is_dir() and older.startswith(f"{package}."))


def unflatten(flat):
    nested = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        node = nested
        for name in path:
            node = node.setdefault(name, {})
        node[last] = value
    return nested


def check_changes(before, after, allowed):
    for key in allowed:
        below = [known for known in after if known == key or known.startswith(f"{key}.")]
        if not below:
            raise ValueError(f"resume_allow names {key}, an unknown setting{did_you_mean(key, list(after))}")
        policies = {change_policy(known) for known in below}
        if "allow" not in policies:
            reason = "may change without it" if policies == {"free"} else "cannot change in a resumed run"
            raise ValueError(f"resume_allow names {key}, which {reason}; remove it")
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    for key in sorted(changed, key=lambda key: (change_policy(key) != "fixed", key)):
        policy = change_policy(key)
        if policy == "free":
            continue
        message = f"{key} was {fmt(before.get(key))} in this run and is now {fmt(after.get(key))}"
        if policy == "fixed":
            raise ValueError(f"{message}; it cannot change in a resumed run: remove it, or start a new name=")
        if not any(key == name or key.startswith(f"{name}.") for name in allowed):
            group = key.partition(".")[0]
            several = sum(other.startswith(f"{group}.") for other in changed) > 1
            name = group if group in WITH_RESUME_ALLOW and several else key
            raise ValueError(f"{message}; remove it, or add resume_allow=[{name}] if you mean it")


def fmt(value):
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def reload_data(config, stored, report=None):
    """The loaders of a resumed run: the same text, and its own tokenizer."""
    folder = stored.place.parent.parent
    tokenizer = read_tokenizer(folder)
    loaders = load(config, tokenizer if config.init_from else None, report)
    if loaders.name == stored.state.dataset_key and loaders.tokenizer.state() == tokenizer.state():
        return loaders
    if not any(key.partition(".")[0] == "data" for key in config.resume_allow):
        raise DataError(
            f"the text has changed since {folder} was trained on it; restore it, or continue with the new text "
            "by resume_allow=[data]"
        )
    return load(config, tokenizer, report)
