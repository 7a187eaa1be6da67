"""Resume: the settings that a resumed run may change, and the checkpoint it continues from."""

import json
import re
from contextlib import suppress
from dataclasses import asdict
from functools import reduce
from glob import escape, glob
from pathlib import Path
from typing import Annotated, NamedTuple

from configs.cli import expand_user, warn
from configs.compose import compose, compose_raw, did_you_mean, groups, package_of, to_config
from configs.errors import CheckpointError, DataError
from configs.registry import check_value, flatten
from data.corpus import load
from data.store import read_index
from model.checkpoint import files
from model.checkpoint.load import check_specs, iter_tensors
from model.checkpoint.save import model_tensors
from training.plan import check_parts
from training.run_folder import check_name
from training.sharding import like

# what a resumed run may change: freely, only if resume_allow names it, or never; the longest prefix decides
POLICIES = {
    "free": "name resume resume_allow device parallel ddp_timeout dry_run world gpu plan debug data.cache "
    "log eval checkpoint sample wandb train.recompute train.steps train.tokens train.epochs train.minutes "
    "train.patience",
    "allow": "data objective optimizer schedule precision compile deterministic train.micro_batch_size "
    "train.grad_clip",
    "fixed": "seed init_from model tokenizer objective.kind optimizer.kind train.batch_size",
}
POLICIES = {name: policy for policy, names in POLICIES.items() for name in names.split()}
MAX_OVERRIDES = 256


def is_under(key, *nodes):
    return any(key == node or key.startswith(f"{node}.") for node in nodes)


def change_policy(key):
    names = [name for name in POLICIES if is_under(key, name)]
    return POLICIES[max(names, key=len)] if names else None


def resolve_config(overrides, init_config=None):
    """(Config, all overrides behind it) of a command line; with resume, of the run that it continues."""
    named = [o for o in overrides if re.match(r"[+~]*(name|resume)=", o)]
    own = compose_raw(named) if any("resume=" in o for o in named) else {"resume": False}
    resume = check_value("resume", own["resume"], bool | Annotated[str, ("auto",)])
    if not resume:
        config = compose(overrides, init_config)
        if config.resume_allow:
            raise ValueError("resume_allow has an effect only with resume=true; remove it")
        return config, without_resume(overrides)
    if own["name"] is None:
        runs = files.list_runs()
        hint = f"the newest run is {runs[-1]}" if runs else f"{files.RUNS_DIR} has no run yet"
        raise ValueError(f"resume={str(resume).lower()} needs a name=...; {hint}")
    check_name(own["name"], resume)
    folder = files.RUNS_DIR / own["name"]
    files.refuse_links(folder)
    if (folder / "config.yaml").exists():
        return merge_overrides(folder, overrides)
    if files.list_checkpoints(folder / "checkpoints"):
        raise CheckpointError(
            f"{folder} has checkpoints but no config.yaml, so it cannot be resumed"
        )
    if resume == "auto":
        return compose(overrides, init_config), without_resume(overrides)
    raise ValueError(
        f"there is no run {folder}{files.did_you_mean_run(folder)}; resume=auto would start it"
    )


def merge_overrides(folder, overrides):
    """The stored config with the changes of the new overrides alone, even if defaults have changed since."""
    stored = files.read_config(folder)
    old = stored.pop("overrides")

    def composed(overrides):
        origin = {part: stored.get(part, {}) for part in ("model", "tokenizer")}
        return flatten(asdict(compose(overrides, lambda place: origin)))

    try:
        check_value("overrides", old, list[str])
        if len(old) > MAX_OVERRIDES:
            raise ValueError(f"it has {len(old):,} overrides; expected at most {MAX_OVERRIDES}")
        config = to_config(stored | {"resume": False, "resume_allow": []})
        check_parts(config)
        before, base = flatten(asdict(config)), composed(old)
    except ValueError as error:
        raise CheckpointError(
            f"{folder / 'config.yaml'} does not describe a run: {error!s:.300}"
        ) from None
    kept, new, nodes = old, [], []
    for override in overrides:
        key = override.partition("=")[0]
        group, _, node = key.partition("@")
        if override.startswith(("+", "~")):
            raise ValueError(
                f"{override}: a resumed run keeps its set of settings; change one by key=value"
            )
        reach = [key]
        if group in groups():
            node = node or package_of(group)
            reach = {k.partition(".")[0] for k in base} if node == "_global_" else [node]
            with suppress(ValueError):  # data=table needs the data.path= that follows
                kinds = [k for k in base if k.endswith(".kind") and is_under(k, *reach)]
                if composed([*old, override]) == base and all(
                    base[k] == before.get(k) for k in kinds
                ):
                    continue  # the option that the run has
            kept = [o for o in kept if not o.startswith(f"{node}.")]
        kept = [o for o in kept if o.partition("=")[0] != key]
        new.append(override)
        nodes += reach
    wanted = composed([*kept, *new])
    after = {
        k: v for k, v in before.items() if k in wanted or not (is_under(k, *nodes) or k in base)
    }
    after |= {k: v for k, v in wanted.items() if is_under(k, *nodes) or v != base.get(k, ...)}
    config = to_config(unflatten(after))
    check_changes(before, flatten(asdict(config)), config.resume_allow)
    if "data.cache" not in nodes:
        check_cache(folder, config.data["cache"])
    if (
        config.init_from
        and "init_from" not in nodes
        and not files.list_checkpoints(folder / "checkpoints")
    ):
        hint = f"add init_from={config.init_from} to start from it"
        raise CheckpointError(
            f"{folder} has no checkpoint, and its config.yaml has an init_from; {hint}"
        )
    return config, without_resume([*kept, *new])


def check_cache(folder, cache):
    """Tokens are not written to a new place that a config.yaml alone names: it may be from anyone."""
    if cache == compose_raw(())["data"]["cache"]:
        return
    for index in glob(f"{escape(str(expand_user(cache)))}/*/index.json"):
        with suppress(DataError):
            return read_index(Path(index))
    hint = f"add data.cache={cache} to tokenize into it"
    raise CheckpointError(
        f"{folder / 'config.yaml'} has data.cache: {cache}, which has no tokens; {hint}"
    )


def without_resume(overrides):
    return [o for o in overrides if not re.match(r"resume(_allow)?=", o)]


def unflatten(flat):
    nested = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        reduce(lambda node, name: node.setdefault(name, {}), path, nested)[last] = value
    return nested


def check_changes(before, after, allowed):
    """Refuse a change that needs resume_allow or that cannot be, and a resume_allow without effect."""
    for key in allowed:
        policies = {change_policy(known) for known in after if is_under(known, key)}
        if not policies:
            raise ValueError(
                f"resume_allow names {key}, an unknown setting{did_you_mean(key, list(after))}"
            )
        if "allow" not in policies:
            reason = (
                "may change without it"
                if policies == {"free"}
                else "cannot change in a resumed run"
            )
            raise ValueError(f"resume_allow names {key}, which {reason}; remove it")
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    for key in sorted(
        changed, key=lambda k: (change_policy(k) != "fixed", not k.endswith(".kind"), k)
    ):
        policy = change_policy(key)
        if policy == "free" or (policy == "allow" and is_under(key, *allowed)):
            continue
        old, new = (json.dumps(flat.get(key)).strip('"') for flat in (before, after))
        message = f"{key} was {old} in this run and is now {new}"
        if policy == "fixed":
            raise ValueError(
                f"{message}; it cannot change in a resumed run: remove it, or start a new name="
            )
        group = key.partition(".")[0]
        name = (
            group
            if group in POLICIES and sum(is_under(other, group) for other in changed) > 1
            else key
        )
        raise ValueError(f"{message}; remove it, or add resume_allow=[{name}] if you mean it")


class StoredCheckpoint(NamedTuple):
    place: Path
    state: files.StoredState
    is_best: bool


def latest_whole(folder, dist, device):
    """The newest undamaged checkpoint of a run, the same in all processes; None if it has no checkpoint."""
    root, errors = folder / "checkpoints", []
    checkpoints = files.whole_checkpoints(root, errors)
    checkpoint = dist.run_slow(lambda: next(checkpoints, None), device, only_main=True)
    if dist.is_main:
        if errors and not checkpoint:
            raise CheckpointError(f"no checkpoint of {folder} is undamaged: {'; '.join(errors)}")
        for error in errors:
            warn(f"{error}; going back to {checkpoint.name}")
    name = dist.broadcast(checkpoint.name if checkpoint else "", device)
    if not name:
        return None
    is_best = files.read_pointer(root, "best") == name
    return StoredCheckpoint(root / name, files.read_state(root / name), is_best)


def reload_data(config, stored, report=None):
    """Rebuild the loaders with the run's own tokenizer; refuse a text that has changed."""
    folder = stored.place.parent.parent
    tokenizer = files.read_tokenizer(folder)
    loaders = load(config, tokenizer if config.init_from else None, report)
    if loaders.name == stored.state.dataset_key and loaders.tokenizer.state() == tokenizer.state():
        return loaders
    if not any(is_under(key, "data") for key in config.resume_allow):
        hint = "restore it, or continue with the new one by resume_allow=[data]"
        message = f"the text has changed since {folder} was trained on it, or is that of another data.path"
        raise DataError(f"{message}; {hint}")
    return load(config, tokenizer, report)


def restore(run):
    """Load weights, optimizer and scaler from the checkpoint, tensor by tensor."""
    state, paths = (
        run.stored.state,
        [run.stored.place / f"{n}.safetensors" for n in ("model", "optimizer")],
    )
    check_specs(paths[0], model_tensors(run.model), "model")
    stepped = state.step > state.skipped_steps
    check_specs(paths[1], run.optimizer.expected_state() if stepped else {}, "optimizer")
    parameters = run.model.state_dict()
    for name, tensor in iter_tensors(paths[0]):
        parameters[name].copy_(like(tensor, parameters[name]))
    run.optimizer.load(iter_tensors(paths[1]))
    if run.scaler.is_enabled() and state.scaler:
        run.scaler.load_state_dict(state.scaler)
