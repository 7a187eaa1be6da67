"""Config: the files in configs/ and the words of a command line become one typed tree."""

import math
import re
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from data import SOURCES
from model.build import in_words
from model.config import ModelConfig
from model.hub import described, located
from training.published import is_published
from training.stored import LARGEST, read_config
from training.words import CONFIGS, composed, sentence

OBJECTIVE = {"decoder": "next_token", "encoder": "masked", "encoder_decoder": "span"}
TRAVELLING = r"[+~]*(model|size|block|norm|attention|position|ffn|tokenizer)\b"


@dataclass
class TrainConfig:
    steps: int | None
    tokens: int | None
    minutes: float | None
    batch_size: int
    micro_batch: int | str
    grad_clip: float
    patience: int | None


@dataclass
class EvalConfig:
    every: int | None
    windows: int


@dataclass
class CheckpointConfig:
    every: int | None
    keep: int


@dataclass
class LogConfig:
    every: int


@dataclass
class ShowConfig:
    every: int | None


@dataclass
class WandbConfig:
    mode: str
    project: str


@dataclass
class Config:
    name: str | None
    resume: bool
    resume_allow: list[str]
    init_from: str | None
    seed: int
    device: str
    precision: str
    compile: bool | str
    dry_run: bool
    debug: bool
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
    wandb: WandbConfig


LEAST = {
    "seed": 0,
    "model.n_layers": 1,
    "model.encoder.n_layers": 1,
    "train.steps": 0,
    "train.tokens": 1,
    "train.minutes": 0,
    "train.batch_size": 1,
    "train.patience": 1,
    "train.grad_clip": 0,
    "eval.every": 1,
    "eval.windows": 1,
    "checkpoint.every": 1,
    "checkpoint.keep": 1,
    "log.every": 1,
    "show.every": 1,
}
MOST = {
    "train.minutes": 10**7,
    "model.n_layers": 10_000,
    "model.encoder.n_layers": 10_000,
    "train.batch_size": 1 << 20,
    "seed": 2**64 - 1,
}
CHOICES = {"compile": ("auto", True, False), "wandb.mode": ("disabled", "offline", "online")}


def compose(words=()):
    """The config that `python train.py *words` would use."""
    return typed(with_objective(words), words)


def typed(config, words):
    """The whole config as dataclasses, its values looked at."""
    try:
        whole = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), config))
    except OmegaConfBaseException as error:
        raise ValueError(mistyped(error, config) or sentence(error, words)) from None
    for key, value in leaves(whole):
        if isinstance(value, bool) and not isinstance(asked := OmegaConf.select(config, key), bool):
            raise ValueError(f"{key} is {asked!r}; expected true or false")
    check(whole)
    return whole


def mistyped(error, config):
    """What a value is and what it should be."""
    if isinstance(error, MissingMandatoryValue) or not error.full_key:
        return None
    expected = Config
    for name in error.full_key.split("."):
        if not is_dataclass(expected):
            return None
        expected = get_type_hints(expected).get(name)
    if expected is None:
        return None
    is_part = is_dataclass(expected) or get_origin(expected) is dict
    words = f"its settings one by one, {error.full_key}.name=value" if is_part else in_words(expected)
    return f"{error.full_key} is {OmegaConf.select(config, error.full_key)!r}; expected {words}"


def with_objective(words):
    """Where the objective is left open, it is the one that fits data and model."""
    own = [word for word in words if word.startswith("objective.")]
    config = with_origin(composed([word for word in words if word not in own]), words)
    fitting = config.objective.kind
    if fitting == "auto":
        source = SOURCES.get(str(config.data.kind))
        of_pairs = source and source.reads == "pairs"
        fitting = "pairs" if of_pairs else OBJECTIVE.get(str(config.model.kind), "next_token")
        config.objective = OmegaConf.load(CONFIGS / f"objective/{fitting}.yaml")
    if own:
        others = [word for word in words if not word.startswith("objective=")]
        config = with_origin(composed([f"objective={fitting}", *others]), words)
    return config


def with_origin(config, words):
    """With init_from, model and tokenizer are those of that run."""
    if config.init_from is None:
        return config
    for word in words:
        if re.match(TRAVELLING, word):
            raise ValueError(
                f"{word} stands beside init_from, which brings model and tokenizer: leave one out"
            )
    if is_published(config.init_from):
        _, model, *_ = described(located(config.init_from))
        config.model, config.tokenizer = asdict(model), {"kind": "hub"}
        return config
    stored = read_config(Path(config.init_from).expanduser())
    config.model, config.tokenizer = stored["model"], stored.get("tokenizer", {})
    return config


def check(config):
    """What can be said before anything is read: numbers within their bounds, words that are known."""
    for key, value in leaves(config):
        most, choices = MOST.get(key, farthest(key, value)), CHOICES.get(key)
        least = LEAST.get(key, -most)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} is {value}; expected a finite number")
        if isinstance(value, int | float) and not least <= value <= most:
            raise ValueError(f"{key} must be from {least:,} to {most:,} and is {value}")
        if choices and value not in choices:
            words = ", ".join(str(choice).lower() for choice in choices)
            raise ValueError(f"{key} is {value!r}; choose one of: {words}")
    train = config.train
    if train.steps is None and train.tokens is None and train.minutes is None:
        raise ValueError("a run needs an end: give train.steps, train.tokens or train.minutes")
    if train.minutes is not None and train.minutes <= 0:
        raise ValueError(f"train.minutes must be above 0 and is {train.minutes}")
    if train.micro_batch != "auto" and (isinstance(train.micro_batch, str) or train.micro_batch < 1):
        raise ValueError(f"train.micro_batch is {train.micro_batch!r}; expected auto or a number of rows")
    if train.patience is not None and config.eval.every is None:
        raise ValueError("train.patience counts evaluations, and there are none: give eval.every")


def farthest(key, value):
    """Where nothing else bounds a number: what torch can count, or float32 can hold."""
    if key.startswith("model."):
        return 2**31
    return LARGEST if isinstance(value, int) else 1e30


def leaves(node, path=""):
    """(key as typed, value) of all that is neither a group nor a part."""
    names = node if isinstance(node, dict) else [field.name for field in fields(node)]
    for name in names:
        value = node[name] if isinstance(node, dict) else getattr(node, name)
        if is_dataclass(value) or isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
