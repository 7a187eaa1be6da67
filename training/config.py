"""Config: the files in configs/ and the words of a command line become one typed tree."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from data import SOURCES
from model.config import ModelConfig

CONFIGS = Path(__file__).parent.parent / "configs"


# values that are paths are taken as they are, whatever characters they hold
PATHS = ("data.path", "data.id", "data.source", "data.target", "data.cache")
OBJECTIVE = {"decoder": "next_token", "encoder": "masked", "encoder_decoder": "span"}


@dataclass
class TrainConfig:
    steps: int
    batch_size: int
    micro_batch: int | None
    grad_clip: float


@dataclass
class EvalConfig:
    every: int
    windows: int


@dataclass
class CheckpointConfig:
    every: int
    keep: int


@dataclass
class LogConfig:
    every: int


@dataclass
class ShowConfig:
    every: int


@dataclass
class Config:
    name: str | None
    seed: int
    device: str
    precision: str
    model: ModelConfig
    data: dict[str, Any]
    tokenizer: dict[str, Any]
    objective: dict[str, Any]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    train: TrainConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    show: ShowConfig


def compose(words=()):
    """The config that `python train.py *words` would use."""
    words = [quoted(word) for word in words]
    try:
        config = with_objective(words)
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), config))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error, words)) from None


def quoted(word):
    key, equals, value = word.partition("=")
    if not equals or key not in PATHS:
        return word
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), value)
    return f"{key}='{escaped.replace('${', chr(92) + '${')}'"


def with_objective(words):
    """Where the objective is left open, it is the one that fits data and model."""
    own = [word for word in words if word.startswith("objective.")]
    config = composed([word for word in words if word not in own])
    fitting = config.objective.kind
    if fitting == "auto":
        source = SOURCES.get(str(config.data.kind))
        of_pairs = source and source.reads == "pairs"
        fitting = "pairs" if of_pairs else OBJECTIVE.get(str(config.model.kind), "next_token")
        config.objective = OmegaConf.load(CONFIGS / f"objective/{fitting}.yaml")
    if own:
        others = [word for word in words if not word.startswith("objective=")]
        config = composed([f"objective={fitting}", *others])
    return config


def composed(words):
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return hydra.compose("train", list(words))


def sentence(error, words):
    """What Hydra says over many lines, in one: what is wrong, what there is, what was meant."""
    full = str(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not understood; write group=kind or key=value, each a word of its own"
    if found := re.search(r"Could not find '(.+)/(.+)'", full):
        group, kind = found.groups()
        kinds = re.findall(r"\n\t(\w+)", full.split("Config search path")[0])
        return f"there is no {group}={kind}{guess(kind, kinds)}; choose one of: {', '.join(kinds)}"
    if found := re.search(r"Could not override '(.+)'|Key '.+' not in|Key '.+' is not in", full):
        key = found[1] or error.full_key
        return f"there is no {key}{guess(key, known_keys(words, key))}"
    # the rest keeps its words, without search paths and types
    said = " ".join(re.split(r"\n\s*(?:Config search path|See https|full_key|object_type)", full)[0].split())
    key = error.full_key if isinstance(error, OmegaConfBaseException) else None
    if isinstance(error, MissingMandatoryValue):
        return f"{key} has no value: it cannot be left out"
    return f"{key}: {said}" if key else said


def known_keys(words, wrong):
    """The groups, and every option there would be without the wrong word."""
    try:
        config = composed([word for word in words if wrong not in word])
    except (HydraException, OmegaConfBaseException):
        config = composed([])
    return [path.name for path in CONFIGS.iterdir() if path.is_dir()] + list(leaves(config, ""))


def leaves(node, path):
    for key, value in node.items():
        yield f"{path}{key}"
        if OmegaConf.is_dict(value):
            yield from leaves(value, f"{path}{key}.")


def guess(word, known):
    near = get_close_matches(word, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""
