"""Resume: a command line that continues a run. The stored config is the base; only what the line names is
laid over it, and each setting says whether it may change."""

import re

import yaml
from omegaconf import OmegaConf

from training.config import Config, compose, typed
from training.errors import CheckpointError
from training.folder import check_name
from training.stored import check_plain, read_config, steps_of
from training.words import CONFIGS, composed, guess, leaves, parsed, quoted, unknown

MUST_MATCH = (
    "seed",
    "init_from",
    "model",
    "tokenizer",
    "objective.kind",
    "optimizer.kind",
    "train.batch_size",
)
MAY_CHANGE = ("name", "resume", "resume_allow", "device", "dry_run", "debug", "data.cache", "log.every")
MAY_CHANGE += ("train.steps", "train.tokens", "train.minutes", "train.patience", "eval.every", "eval.windows")
MAY_CHANGE += ("checkpoint.every", "checkpoint.keep", "show.every", "wandb.mode", "wandb.project")
ON_REQUEST = ("data", "objective", "optimizer", "schedule", "precision", "compile")
ON_REQUEST += ("train.micro_batch", "train.grad_clip")
OWN = {"resume": False, "resume_allow": []}  # of a command line, not of a run


def class_of(key):
    """must-match, may-change or on-request: that of the longest name which the key begins with."""
    named = {name: "must-match" for name in MUST_MATCH} | {name: "may-change" for name in MAY_CHANGE}
    named |= {name: "on-request" for name in ON_REQUEST}
    fitting = [name for name in named if key == name or key.startswith(f"{name}.")]
    return named[max(fitting, key=len)] if fitting else None


def continued(words, home):
    """The config that `python train.py *words` asks for; with resume=true, that of the run it continues."""
    named = [word for word in words if re.match(r"[+~]*(name|resume)=", word)]
    own = typed(composed(named), named) if any("resume" in word for word in named) else None
    if own is None or not own.resume:
        config = compose(words)
        if config.resume_allow:
            raise ValueError(
                "resume_allow says what may change where a run goes on, by name=... resume=true; leave it out"
            )
        return config
    if own.name is None:
        raise ValueError(f"resume=true needs the name of a run, name=...{newest_of(home)}")
    check_name(own, home)
    folder = home / own.name
    check_plain(folder)
    if not (folder / "config.yaml").exists():
        if steps_of(folder / "checkpoints"):
            raise CheckpointError(f"{folder} has checkpoints and no config.yaml; it cannot go on without")
        return compose(words)
    stored = OmegaConf.create(read_config(folder) | OWN)
    before = typed_config(stored, folder)
    after = typed(laid_over(stored, words), words)
    check_changes(flat(before), flat(after), after.resume_allow)
    return after


def newest_of(home):
    runs = [path for path in home.glob("*") if (path / "config.yaml").exists()]
    newest = max(runs, key=lambda path: (path / "config.yaml").stat().st_mtime, default=None)
    return f"; the newest is name={newest.name}" if newest else f"; there is none in {home} yet"


def typed_config(stored, folder):
    try:
        return typed(stored, ())
    except ValueError as error:
        raise CheckpointError(f"{folder / 'config.yaml'} does not describe a run: {error}") from None


def laid_over(stored, words):
    """The stored config with the values that the words name, and no others."""
    config = OmegaConf.create(OmegaConf.to_container(stored))
    for word in words:
        if word[0] in "+~":
            raise ValueError(f"{word} adds or takes out, and a run goes on with the settings it has")
    overrides = list(zip(words, parsed(words), strict=True))
    groups = [word for word, override in overrides if is_group(override)]
    fresh = composed(groups) if groups else None
    for _, override in overrides:
        if is_group(override) and override.value() not in (None, "auto"):
            lay(config, fresh, override.get_key_element(), override.value())
    for word, override in overrides:
        if not is_group(override):
            key, value = override.key_or_group, override.value()
            known = list(leaves(config, ""))
            if key not in known:
                raise ValueError(unknown(key, known))
            if "${" in word and quoted(word) == word:
                raise ValueError(f"{word}: a value is plain data and refers to nothing else")
            OmegaConf.update(config, key, value)
    return config


def is_group(override):
    return (CONFIGS / override.key_or_group).is_dir()


def lay(config, fresh, group, kind):
    """All that the file of a kind says, and what it chooses of other groups."""
    group, _, place = group.partition("@")
    text = (CONFIGS / group / f"{kind}.yaml").read_text(encoding="utf-8")
    own = yaml.safe_load(text) or {}
    for chosen in own.pop("defaults", []):
        ((name, value),) = chosen.items() if isinstance(chosen, dict) else (("", None),)
        if name.startswith("override /") and value is not None:
            lay(config, fresh, name.removeprefix("override /"), value)
    found = re.match(r"# @package ([\w.]+)", text)
    place = place or (found[1] if found and found[1] != "_global_" else "")
    if "kind" in own and place:  # a part: its options are those of its kind
        part, before = OmegaConf.select(fresh, place), OmegaConf.select(config, place) or {}
        asked = {key: before.get(key) if OmegaConf.is_missing(part, key) or key not in own else part[key]
                 for key in part}  # fmt: skip
        OmegaConf.update(config, place, asked, merge=False)
        return
    for key in leaves(OmegaConf.create(own), f"{place}." if place else ""):
        if not OmegaConf.is_dict(value := OmegaConf.select(fresh, key)):
            OmegaConf.update(config, key, value, force_add=True)


def flat(config):
    """{key as typed: value} of all that is neither a group nor a part."""
    plain = OmegaConf.structured(Config)
    whole = OmegaConf.create(OmegaConf.to_container(OmegaConf.merge(plain, config)))
    return {
        key: value
        for key in leaves(whole, "")
        if not OmegaConf.is_dict(value := OmegaConf.select(whole, key))
    }


def check_changes(before, after, allowed):
    for key in allowed:
        if not any(known == key or known.startswith(f"{key}.") for known in after):
            raise ValueError(
                f"resume_allow names {key}, and there is no such setting{guess(key, list(after))}"
            )
        classes = {class_of(known) for known in after if known == key or known.startswith(f"{key}.")}
        if "on-request" not in classes:
            always = "may change without" if classes == {"may-change"} else "stays as the run began with it"
            raise ValueError(f"resume_allow names {key}, which {always}; leave it out")
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    for key in sorted(changed, key=lambda key: (class_of(key) != "must-match", key)):
        old, new, kind = before.get(key), after.get(key), class_of(key)
        if kind == "may-change":
            continue
        said = f"{key} was {shown(old)} in this run and is now {shown(new)}"
        if kind == "must-match":
            raise ValueError(
                f"{said}; a run goes on with what it began with: leave it out, or start another name="
            )
        if not any(key == name or key.startswith(f"{name}.") for name in allowed):
            group = key.partition(".")[0]
            together = [other for other in changed if other.startswith(f"{group}.")]
            asked = group if group in ON_REQUEST and len(together) > 1 else key
            raise ValueError(f"{said}; leave it out, or say resume_allow=[{asked}] if that is meant")


def shown(value):
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
