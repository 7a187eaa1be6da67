"""Compose: what Hydra composed becomes one typed Config, and Hydra's errors become one sentence."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.registry import flatten, from_dict
from configs.schema import Config, check_numbers

CONFIGS = Path(__file__).parent
# taken as typed: names and paths may have characters that mean something to Hydra
VERBATIM = {"name", "init_from", "data.path", "data.id", "data.source", "data.target", "data.cache"}
PAIR_SOURCES = ("pairs", "parallel", "docstrings", "synthetic")
DEFAULT_OBJECTIVE = {"decoder": "next_token", "encoder": "masked", "encoder_decoder": "span"}
FLAGS = {
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package"),
    *("-r", "--run", "-m", "--multirun", "-sc", "--shell-completion", "-cp", "--config-path"),
    *("-cn", "--config-name", "-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
}
GPT2_SIZES = {"gpt2-medium": "350m", "gpt2-large": "774m", "gpt2-xl": "1558m"}
# what other projects call a setting
SYNONYMS = {
    "lr": "learning_rate max_lr",
    "min_lr_ratio": "min_lr",
    "train.steps": "max_iters max_steps iterations num_train_steps",
    "train.epochs": "num_train_epochs max_epochs",
    "train.tokens": "max_tokens",
    "micro_batch_size": "gradient_accumulation_steps",
    "context_length": "block_size seq_len seq_length n_positions context",
    "d_model": "n_embd dim hidden_size",
    "n_layers": "n_layer depth num_layers",
    "n_heads": "n_head heads num_heads",
    "precision": "dtype mixed_precision fp16 bf16",
    "name": "out_dir output_dir",
    "eval.every": "eval_interval",
    "log.every": "log_interval",
    "wandb.mode": "wandb_log",
    "sliding_window": "window",
    "logit_softcap": "softcap",
    "rope_theta": "base",
}
MEANING = {synonym: name for name, synonyms in SYNONYMS.items() for synonym in synonyms.split()}


def compose(overrides: Sequence[str] = ()) -> Config:
    """The Config of these overrides, without a command line."""
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        node = hydra.compose("train", prepare_arguments(overrides))
    return to_config(node)


def prepare_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra takes it: flags first, verbatim values quoted, implied settings
    added."""
    flags = [argument for argument in arguments if not is_override(argument)]
    overrides = [quote(argument) for argument in arguments if is_override(argument)]
    if unknown := [
        flag for flag in flags if flag.startswith("-") and flag.partition("=")[0] not in FLAGS
    ]:
        name = unknown[0].partition("=")[0].lstrip("-").replace("-", "_")
        setting = nearest(name, known_settings([])) or "train.steps"
        hint = f"settings are written key=value, for example {setting}=... (see --cfg job)"
        raise ValueError(f"unknown option {unknown[0]}; {hint}")
    return flags + overrides + implied(overrides)


def prepare_hydra() -> None:
    """The command line of this process, before Hydra reads it."""
    sys.argv[1:] = prepare_arguments(sys.argv[1:])
    if "RANK" in os.environ and {"-m", "--multirun"} & set(sys.argv):
        raise ValueError(
            "-m trains one model after another; with torchrun, start each run by itself"
        )
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors are raised, for run_command


def is_override(argument: str) -> bool:
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def quote(override: str) -> str:
    """Values of the VERBATIM keys are taken as typed, but for lists: a sweep has one (-m
    name=a,b)."""
    key, _, value = override.partition("=")
    is_list = "," in value and not os.path.exists(os.path.expanduser(value))
    if key not in VERBATIM or value == "null" or is_list or re.match(r"['\"\[]|\$\{", value):
        return override
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), value)
    return f"{key}='{escaped}'"


def implied(overrides: Sequence[str]) -> list[str]:
    """Settings that follow from others: a length replaces the default one, and fine-tuning has an
    optimizer of its own."""
    values = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
    lengths = [values.get(f"train.{name}", "null") for name in ("tokens", "epochs", "minutes")]
    more = []
    if "train.steps" not in values and lengths != ["null"] * 3:
        more.append("train.steps=null")
    is_chosen = bool({"optimizer", "experiment"} & values.keys())
    run = Path("runs", values.get("name", "").strip("'"), "config.yaml")
    resumed = values.get("resume") == "true" or run.exists()
    if values.get("init_from", "null") != "null" and not is_chosen and not resumed:
        more.append("optimizer=finetune")
    return more


def to_config(node: DictConfig) -> Config:
    """Hydra's config as a Config: every value of its type and within its bounds."""
    values: Any = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    for group in groups():
        if group in values and group not in Config.__dataclass_fields__ and group != "hydra":
            line = f"'# @package {package_of(group)}'"
            raise ValueError(f"each file of configs/{group} must begin with the line {line}")
    if values["objective"]["kind"] == "auto":
        values["objective"] = default_objective(values["model"]["kind"], values["data"]["kind"])
    config = from_dict(Config, values)
    check_numbers(flatten(asdict(config)))
    train = config.train
    if (train.steps, train.tokens, train.epochs, train.minutes) == (None, None, None, None):
        lengths = "train.steps, train.tokens, train.epochs or train.minutes"
        raise ValueError(f"a run needs an end: set {lengths}")
    if train.patience is not None and config.eval.every is None:
        raise ValueError("train.patience counts evaluations and eval.every is null: set eval.every")
    return config


def default_objective(model: str, data: str) -> Any:
    kind = "pairs" if data in PAIR_SOURCES else DEFAULT_OBJECTIVE.get(model, "next_token")
    return OmegaConf.to_container(OmegaConf.load(CONFIGS / f"objective/{kind}.yaml"))


def groups() -> dict[str, list[str]]:
    """The options of each config group."""
    found: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.glob("*/*.yaml")):
        found.setdefault(path.parent.name, []).append(path.stem)
    return found


def package_of(group: str) -> str:
    """The node of the config that an option of the group fills; of presets, "_global_"."""
    first = next((CONFIGS / group).glob("*.yaml"))
    match = re.search(r"(?m)^# @package ([\w.]+)", first.read_text(encoding="utf-8"))
    return match[1] if match else group


def explain_hydra(error: Exception) -> str:
    """An error of Hydra or OmegaConf in one sentence, with the name that was probably meant."""
    end = r"\n\s*(?:Available options|Config search path|See https|full_key|object_type)"
    text = " ".join(re.split(end, str(error))[0].split())
    key = getattr(error, "full_key", None)
    if override := getattr(error, "override", None):
        return explain_unparsed(override)
    if match := re.search(r"Could not find '(.+?)/(.+)'", text):
        available = re.findall(r"\n\t(\S+)", str(error).partition("Config search path")[0])
        return unknown_option(match[1], match[2], available or groups().get(match[1], []))
    if match := re.search(r"Ambiguous value for argument '(.+?)'|Sweep parameters '(.+?)'", text):
        return f"{match[1] or match[2]} lists several values; -m runs one training for each"
    if match := re.search(r"Could not (?:override|delete from config\.) '(.+?)'", text):
        return unknown_setting(match[1], sys.argv[1:])
    if match := re.search(r"Could not override '?([\w@./]+)'?\. ?No match in the defaults", text):
        return unknown_setting(match[1], sys.argv[1:])
    if match := re.search(r"Multiple values for (\S+?)\. |An item is already at '(.+?)'", text):
        return f"{match[1] or match[2]} exists already; write it without +"
    if match := re.search(r"Missing mandatory value: (\S+)", text):
        return f"{key or match[1]} is required"
    return f"{key}: {text}" if key else text


def explain_unparsed(override: str) -> str:
    if override.endswith((".py", ".yaml")):
        return f"unknown setting {override}; recipes are experiment=..."
    if "=" not in override and re.search(r"[./]", override) and os.path.exists(override):
        return f"unknown setting {override}; to train on it, use data=text data.path={override}"
    return f"cannot parse {override!r:.60}; write group=option or key=value, each as one shell word"


def unknown_option(group: str, option: str, options: Sequence[str]) -> str:
    if group == "model" and (size := GPT2_SIZES.get(option)):
        return f"unknown option model={option}; write model=gpt2 size={size}"
    if group == "data" and (
        os.path.exists(os.path.expanduser(option)) or re.search(r"[./]", option)
    ):
        kind = "text"
        if option.endswith((".jsonl", ".json", ".csv", ".tsv", ".parquet")):
            kind = "table"
        return f"data=... is a kind of data, not a path; use data={kind} data.path={option}"
    hint = did_you_mean(option, options)
    known = f"choose one of: {', '.join(options)}"
    if group == "model" and not hint:
        known += "; a pretrained model is loaded by init_from=FOLDER"
    return f"unknown option {group}={option}{hint}; {known}"


def unknown_setting(key: str, arguments: Sequence[str]) -> str:
    """Name the option that has this setting, or the nearest name, or the settings beside it."""
    known = known_settings([a for a in arguments if re.split("[@=]", a)[0] in groups()])
    node, _, last = key.rpartition(".")
    group = node.rpartition(".")[2]
    node = f"model.{group}" if f"model.{group}.kind" in known else node
    meant = f"{node}.{last}".lstrip(".")
    if group in groups() and f"{node}.kind" in known and meant not in known:
        paths = [CONFIGS / group / f"{option}.yaml" for option in groups()[group]]
        having = [path.stem for path in paths if re.search(f"(?m)^{last}:", path.read_text())]
        if having:
            best = min(having, key=len)
            chosen = known[f"{node}.kind"]
            return f"{group}={chosen} has no {last!r}; did you mean {group}={best} {meant}=...?"
    names = [name for name in known if not key.startswith(f"{name}.")]
    if hint := did_you_mean(meant, names if node else [*names, *groups()]):
        return f"unknown setting {key}{hint}"
    siblings = [name for name in known if node and name.rpartition(".")[0] == node]
    return f"unknown setting {key}" + (f"; there are {', '.join(siblings)}" if siblings else "")


def known_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """{dotted key: value} of the config with these options, or of the default one."""
    for options in (overrides, []):
        try:
            with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
                node = hydra.compose("train", list(options))
            values: Any = OmegaConf.to_container(node)
            return flatten(values)
        except (HydraException, OmegaConfBaseException):
            continue
    return {}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ends alike, that a synonym stands for, or that looks alike; or None."""
    known = list(known)
    node, _, last = name.rpartition(".")
    if alike := [k for k in known if k.rpartition(".")[2] == last]:
        return get_close_matches(name, alike, 1, 0)[0]
    if meaning := MEANING.get(last):
        return meaning if "." in meaning else nearest(meaning, known) or meaning
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == node}
    siblings |= {other: siblings[own] for other, own in MEANING.items() if own in siblings}
    if close := get_close_matches(last, siblings, 1):
        return siblings[close[0]]
    return next(iter(get_close_matches(name, known, 1, 0.7 if node else 0.6)), None)
