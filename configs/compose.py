"""Compose: what Hydra composed becomes one typed Config, and Hydra's errors become one sentence."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from configs.parts import CONFIGS, load_parts, parts_configs
from configs.registry import flatten, from_dict
from configs.schema import Config

# taken as typed: names and paths may have characters that mean something to Hydra
VERBATIM = ["name", "init_from", "parts", "adapt.layers", "data.path", "data.val_path", "data.id"]
VERBATIM += ["data.source", "data.target", "data.cache"]
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
    "adapt": "peft lora freeze adapter",
    "rank": "r lora_r",
    "alpha": "lora_alpha",
    "adapt.layers": "target_modules",
    "data.val_path": "val_file validation_file test_file eval_file",
    "eval.every": "eval_interval",
    "log.every": "log_interval",
    "wandb.mode": "wandb_log",
    "sliding_window": "window",
    "logit_softcap": "softcap",
    "rope_theta": "base",
}
MEANING = {synonym: name for name, synonyms in SYNONYMS.items() for synonym in synonyms.split()}
LENGTHS = ("train.steps", "train.tokens", "train.epochs", "train.minutes")
HINTS = {  # beside the options of a group
    "model": "; size= sets the size, init_from= loads a model: init_from=openai-community/gpt2-medium",
    "data": "; a file is read by data=text or data=table, conversations by data=chat, and data.path=...",
}


def compose(overrides: Sequence[str] = ()) -> Config:
    """The Config of these overrides, without a command line."""
    return to_config(compose_node(overrides))


def compose_node(overrides: Sequence[str]) -> DictConfig:
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        node = hydra.compose("train", prepare_arguments(overrides))
    load_parts(node.parts)
    return node


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def prepare_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line as Hydra takes it: flags first, verbatim values quoted, implied settings
    added."""
    parser = get_args_parser()
    parser.exit_on_error = False
    parsed, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        hint = "settings are written key=value (see --cfg job)"
        raise ValueError(f"unknown option {unknown[0]}; {hint}")
    flags = [argument for argument in arguments if argument not in parsed.overrides]
    return [*flags, *map(quote, parsed.overrides), *implied(parsed.overrides)]


def quote(override: str) -> str:
    """Values of the VERBATIM keys are taken as typed, but for what only Hydra can mean: null, quotes,
    ${...}, lists."""
    key, _, value = override.partition("=")
    is_list = value.startswith("[") and value.endswith("]")
    is_sweep = "," in value and not os.path.exists(os.path.expanduser(value))
    is_hydra = value == "null" or value.startswith(("'", '"', "${"))
    if key not in VERBATIM or is_list or is_sweep or is_hydra:
        return override
    return f"{key}={quoted(value)}"


def quoted(value: object) -> str:
    return QuotedString(str(value), Quote.single).with_quotes()


def implied(overrides: Sequence[str]) -> list[str]:
    """A length replaces all others; the parts file brings its options."""
    values = {key_of(override): override.partition("=")[2] for override in overrides}
    added = []
    if any(values.get(length, "null") != "null" for length in LENGTHS):
        added += [f"{length}=null" for length in LENGTHS if length not in values]
    parts = values.get("parts", "null")
    folder = None if parts == "null" else parts_configs(parts.strip("'\""))
    if folder:
        added.append(f"hydra.searchpath=[{quoted(folder)}]")
    return added


def to_config(node: DictConfig) -> Config:
    """Hydra's config as a Config: every value of its type and within its bounds."""
    values: Any = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    for name in values.keys() - Config.__dataclass_fields__.keys():
        if (CONFIGS / name).is_dir():  # where Hydra puts a file that does not say where it belongs
            line = "'# @package ...', as the others in its folder"
            raise ValueError(f"the file of {name}=... must begin with the line {line}")
    config = from_dict(Config, values)
    if config.plan.gpu and not config.dry_run:
        raise ValueError("plan.gpu plans a run for another GPU: add dry_run=true")
    train = config.train
    if {train.steps, train.tokens, train.epochs, train.minutes} == {None}:
        raise ValueError(f"a run needs an end: set one of {', '.join(LENGTHS)}")
    if train.patience is not None and config.eval.every is None:
        raise ValueError("train.patience counts evaluations and eval.every is null: set eval.every")
    return config


def with_defaults(source: dict[str, Any]) -> dict[str, Any]:
    """A source of a mix, whose kind is the name of an option: {kind: tinystories} is of the kind hub,
    with the settings of that file. ??? is what it has to set itself."""
    name = source.get("kind")
    path = CONFIGS / f"data/{name}.yaml"
    option: dict[str, Any] = read_yaml(path) if path.exists() else {"kind": name}
    for base in option.pop("defaults", []):
        option = with_defaults({"kind": base}) | option
    usual = {key: value for key, value in option.items() if value != "???"}
    return usual | source | {"kind": option["kind"]}


def read_yaml(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))


def explain_hydra(error: Exception) -> str:
    """An error of Hydra or OmegaConf in one sentence, with the name that was probably meant."""
    text = str(error)
    if override := getattr(error, "override", None):
        example = "group=option or key=value, such as experiment=shakespeare_char train.steps=200"
        return f"cannot parse {override!r:.60}; write {example}, each as one shell word"
    # Could not find 'optimizer/sgd' / Available options in 'optimizer': / <tab> adamw ...
    if match := re.search(r"Could not find '((?:hydra/)?.+?)/(.*)'", text):
        group, option = match.groups()
        options = re.findall(r"(?m)^\t([\w-]+)$", text)
        hint = did_you_mean(option, options)
        known = f"choose one of: {', '.join(options)}{HINTS.get(group, '')}"
        return f"unknown option {group}={option}{hint}; {known}"
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+)'", text):
        return f"{match[1]} lists several values; -m runs one training for each"
    # Could not override 'train.stepz'. / Could not delete from config. 'train.stepz' does not exist.
    if match := re.search(r"Could not (?:override|delete)(?: from config\.)? '(.+?)'", text):
        return unknown_setting(match[1])
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is required"
    return text.partition("\n")[0]


def unknown_setting(key: str) -> str:
    """Name the options that have this setting, or the nearest name."""
    options: dict[str, list[str]] = defaultdict(list)  # that have a setting
    for path in sorted(CONFIGS.rglob("*.yaml")):
        node = read_yaml(path)
        node.pop("hydra", None)  # settings of Hydra itself
        package = re.search(r"# @package ([a-z].*)", path.read_text(encoding="utf-8"))
        prefix = f"{package[1]}." if package else ""
        for name in flatten(node, prefix):
            options[name].append(f"{path.parent.name}={path.stem}")
    if key in options:
        return f"{key} is a setting of {' or '.join(options[key])}, which is not chosen"
    groups = [folder.name for folder in CONFIGS.iterdir() if folder.is_dir()]
    return f"unknown setting {key}{did_you_mean(key, [*options, *groups])}; --cfg job prints all"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The known name whose last part, or what others call it, looks most like that of this one.
    model.attention.windw looks like `window`, which means sliding_window; of all names that end so,
    model.attention.sliding_window is the nearest."""
    node, dot, last = name.rpartition(".")
    words = [key.rpartition(".")[2] for key in known]
    [word] = get_close_matches(last, [*words, *MEANING], 1) or [""]
    meant = MEANING.get(word, word)
    alike = [key for key in known if f".{key}".endswith(f".{meant}")]
    near = get_close_matches(f"{node}{dot}{meant}", alike, 1, 0)
    return f" (did you mean {near[0]}?)" if near else ""
