"""Corpus: the data, tokenizer and objective of a config become loaders of batches."""

import sys
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed

from configs.registry import Ratio, build, check_value
from data import OBJECTIVES, SOURCES, TOKENIZERS, PairLoader, TokenLoader, batches, prepare
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import FromState


class Loaders(NamedTuple):
    """What a run trains on and what it is judged by."""

    tokenizer: Tokenizer
    train: TokenLoader | PairLoader
    validation: TokenLoader | PairLoader

    @property
    def name(self):
        """Of the text, its tokenizer and their options: the same only where all of them are."""
        return self.train.part.path.parent.name


def load(config, tokenizer=None, report=None):
    """From text to batches, by way of the cache; `tokenizer` is that of a model that was trained before."""
    options = dict(config.data)
    cache = check_value("data.cache", options.pop("cache"), str)
    val_fraction = check_value("data.val_fraction", options.pop("val_fraction"), Ratio)
    source = build("data", SOURCES, options, {"cache": cache})
    shared = {"context_length": config.model.context_length, "architecture": config.model.kind}
    check(config.objective["kind"], source, config)
    objective = build("objective", OBJECTIVES, config.objective, shared)
    if tokenizer is None:
        vocabulary = build("tokenizer", TOKENIZERS, config.tokenizer, {})
    else:
        vocabulary = FromState(tokenizer.state())
    corpus = prepare(
        source, vocabulary, objective.specials, cache=cache, val_fraction=val_fraction, report=report
    )
    sizes = {"batch_size": config.train.batch_size, "seed": config.seed}
    parts = (corpus.train, corpus.validation)
    return Loaders(corpus.tokenizer, *(batches(part, objective, corpus.tokenizer, **sizes) for part in parts))


def check(kind, source, config):
    """Whether this objective can be asked of this source and this model."""
    if kind not in list(OBJECTIVES):
        return  # build says so better
    objective, architecture = OBJECTIVES[kind], config.model.kind
    if objective.input_kind != source.input_kind:
        raise ValueError(
            f"objective={kind} reads {objective.input_kind} and data={config.data['kind']} gives {source.input_kind}; "
            "objective=auto chooses the one that fits"
        )
    if architecture not in objective.architectures:
        fitting = [
            k
            for k, o in OBJECTIVES.items()
            if o.input_kind == source.input_kind and architecture in o.architectures
        ]
        way_out = f"use objective={fitting[0]}" if fitting else "use data of plain text, such as data=text"
        able = " or ".join(objective.architectures)
        raise ValueError(
            f"objective={kind} needs a model whose kind is {able}, not {architecture}; {way_out}"
        )


@contextmanager
def tokenizing_progress():
    """A function for prepare(report=): a bar on a terminal, a line at the end elsewhere. What is already
    prepared shows nothing."""
    console = Console(stderr=True)
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = None

        def report(done, total):
            nonlocal task
            if task is None:
                task = bar.add_task("tokenizing", total=total)
            bar.update(task, completed=done, total=total)

        yield report
        speed = bar.tasks[0].speed if bar.tasks else None
    if task is not None:
        message = f"tokenized {bar.tasks[0].completed / 1e6:.1f} MB of tokenizing"
        print(message + (f" ({speed / 1e6:.1f} MB/s)" if speed else ""), file=sys.stderr)
