"""The settings of a run: what Hydra composed from a command line, checked before any text is read.
Those of a resumed run are in resume.py."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.filesize import decimal

from configs.cli import report
from configs.compose import compose_node, key_of, to_config
from configs.parts import load_parts
from configs.registry import build
from configs.schema import Config
from data.corpus import build_data
from data.tokenizers.train import TRAINERS
from model.adapt import adapt
from model.transformer import build_model, check_config
from training.checks import check_state
from training.compare import end_of_run
from training.finetune import with_model
from training.metrics import METRICS
from training.optimizer import OPTIMIZERS
from training.resume import is_resumable, place_in_sweep, resumed
from training.run_folder import check_name, code_hashes
from training.schedule import build_schedule


def read_settings(node: DictConfig) -> tuple[Config, dict]:
    """Returns (the config of a run; its origin, for config.yaml: the option of each config group,
    the overrides of the command line, and the hashes of the code)."""
    if node.parts is not None:
        load_parts(node.parts)
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    found = hydra.runtime.choices
    choices = {group: found[group] for group in found if not group.startswith("hydra/")}
    origin = {"choices": choices, "overrides": overrides, "code": code_hashes()}

    name = node.name
    resume = node.resume
    if hydra.mode == RunMode.MULTIRUN:
        name, resume = place_in_sweep(node, hydra)
    elif name is not None:
        check_name(name, resume)
    if resume and is_resumable(name, resume):
        config, origin = resumed(node, name, origin)
    else:
        config, origin["choices"] = new_config(node, choices, overrides)
    config = replace(config, name=name, resume=resume)
    check_parts(config)
    return config, origin


def new_config(node: DictConfig, choices: dict, overrides: Sequence[str]) -> tuple[Config, dict]:
    """Returns (the config of a new run; the option of each config group, but for those that the
    model of init_from replaces)."""
    if node.init_from is not None:
        node, choices = with_model(node, list(map(key_of, overrides)), choices)
    elif node.adapt.kind != "none":
        raise ValueError("adapt= trains a part of a trained model: add init_from=")
    return to_config(node), choices


def compose_run(overrides: Sequence[str]) -> Config:
    """The config of a new run, for Python: train.train(compose_run(["model=gpt2"]))."""
    node = compose_node(overrides)
    if node.resume or node.dry_run:
        raise ValueError("resume= and dry_run= are for a command line: python train.py")
    if node.name is not None:
        check_name(node.name, False)
    config, _ = new_config(node, {}, overrides)
    check_parts(config)
    return config


def check_parts(config: Config) -> None:
    """Build each part once, so that wrong settings, or a model that is too large, are refused
    before any text is read."""
    check_config(config.model)
    with torch.device("meta"):
        model = build_model(config.model, 256)  # the vocabulary is not known yet
    if not config.dry_run:
        check_memory(model, config)
    if config.adapt["kind"] != "none":
        adapt(model, config.adapt)

    build("optimizer", OPTIMIZERS, config.optimizer, {"model": model})
    _, objective, _ = build_data(config)
    check_state(model, objective)

    for name in config.metrics.names:
        if name not in METRICS:
            known = ", ".join(METRICS) or "none without parts="
            raise ValueError(f"metrics.names has {name!r}; choose from: {known}")
    if not config.init_from:  # else it is loaded
        build("tokenizer", TRAINERS, config.tokenizer)

    train = config.train
    only_minutes = {train.steps, train.tokens, train.epochs} == {None}
    # steps may be None: what train.tokens and train.epochs stand for depends on the text
    build_schedule(config.schedule, math.inf if only_minutes else train.steps)


def check_memory(model: Any, config: Config) -> None:
    weights = sum(parameter.nbytes for parameter in model.parameters())
    # a batch has three tensors of ids
    batch = 3 * 8 * config.train.batch_size * config.model.context_length
    memory = host_memory()
    if weights + batch > memory:
        sizes = f"the weights need {decimal(weights)}, a batch {decimal(batch)}"
        hint = "choose a smaller size= or train.batch_size"
        raise MemoryError(f"{sizes}, and the memory is {decimal(memory)}; {hint}")


def host_memory() -> int:
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Sweep(Callback):
    """Reports the error of any run before Hydra prints a line of its own, and after each run of a
    sweep the table of its runs."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **options: Any) -> None:
        if config.hydra.mode == RunMode.MULTIRUN:
            end_of_run(config.hydra, job_return)
        elif job_return.status == JobStatus.FAILED:
            raise SystemExit(report(job_return._return_value))
