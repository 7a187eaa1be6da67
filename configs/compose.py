"""Compose: turns what Hydra composed into one typed Config."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from configs.parts import CONFIGS, load_parts, parts_configs
from configs.registry import construct
from configs.schema import Config

# taken literally: names and paths may have characters that mean something to Hydra
VERBATIM = ["name", "init_from", "parts", "adapt.layers", "data.path", "data.val_path", "data.id"]
VERBATIM += ["data.source", "data.target", "data.cache", "data.field", "data.label", "data.name"]
VERBATIM += ["data.split", "data.revision"]
LENGTHS = ("train.steps", "train.tokens", "train.epochs", "train.minutes")


def compose(overrides: Sequence[str] = ()) -> Config:
    """The Config of these overrides, without a command line."""
    return to_config(compose_node(overrides))


def to_config(node: DictConfig) -> Config:
    """Turn Hydra's config into a Config, and check the type and bounds of every value."""
    if missing := OmegaConf.missing_keys(node):
        raise ValueError(f"a value is needed for {' and '.join(sorted(missing))}")
    values: Any = OmegaConf.to_container(node, resolve=True)
    for name in values.keys() - Config.__dataclass_fields__.keys():
        if (CONFIGS / name).is_dir():  # where Hydra puts a file of your own without `@package`
            line = "'# @package ...', like the others in its folder"
            raise ValueError(f"the file of {name}=... must begin with the line {line}")

    config: Config = construct("", Config, values)
    if config.plan.gpu is not None and not config.dry_run:
        raise ValueError("plan.gpu plans a run for another GPU: add dry_run=true")
    if all(OmegaConf.select(node, length) is None for length in LENGTHS):
        raise ValueError(f"a run needs a length: set one of {', '.join(LENGTHS)}")
    if config.train.patience is not None and config.eval.every is None:
        raise ValueError("train.patience counts evaluations and eval.every is null: set eval.every")
    return config


def compose_node(overrides: Sequence[str]) -> DictConfig:
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        node = hydra.compose("train", prepare_arguments(overrides))
    load_parts(node.parts)
    return node


def prepare_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line in Hydra's form: flags first, verbatim values quoted, implied settings
    added."""
    "".join(arguments).encode()  # refuses now what is not UTF-8: it could not be written later
    parser = get_args_parser()
    parser.exit_on_error = False
    parsed, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0]}; a setting has no dashes: {unknown[0].lstrip('-')}"
        )
    flags = [argument for argument in arguments if argument not in parsed.overrides]
    return [*flags, *map(quote, parsed.overrides), *implied(parsed.overrides)]


def implied(overrides: Sequence[str]) -> list[str]:
    """Overrides that follow from others: a length unsets the other lengths; parts= adds the
    configs/ beside its file to the search path."""
    values = {key_of(override): override.partition("=")[2] for override in overrides}
    added = []
    if any(values.get(length, "null") != "null" for length in LENGTHS):
        added += [f"{length}=null" for length in LENGTHS if length not in values]
    parts = values.get("parts", "null").strip("'\"")
    if parts != "null" and (folder := parts_configs(parts)):
        added.append(f"hydra.searchpath=[{quoted(folder)}]")
    return added


def quote(override: str) -> str:
    """Quote the values of VERBATIM keys, which are taken literally, except those meant for
    Hydra: null, quoted text, ${...}, lists, sweeps."""
    key, _, value = override.partition("=")
    is_list = value.startswith("[") and value.endswith("]")
    is_sweep = "," in value and not os.path.exists(os.path.expanduser(value))
    is_hydra = value == "null" or value.startswith(("'", '"', "${"))
    if key not in VERBATIM or is_list or is_sweep or is_hydra:
        return override
    return f"{key}={quoted(value)}"


def quoted(value: object) -> str:
    return QuotedString(str(value), Quote.single).with_quotes()


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def read_yaml(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))
