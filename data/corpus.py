"""From a config to loaders: builds the source, objective and tokenizer it names, and prepares the corpus."""

import sys
import time
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from configs.registry import Ratio, build, check_value
from data import OBJECTIVES, SOURCES, TOKENIZERS
from data.loader import PairLoader, TokenLoader
from data.prepare import prepare
from data.tokenizers.tokenizer import Tokenizer
from data.tokenizers.train import FromState


class Loaders(NamedTuple):
    tokenizer: Tokenizer
    train: TokenLoader | PairLoader
    validation: TokenLoader | PairLoader

    @property
    def name(self):
        """Of the corpus, equal only where the text, the tokenizer and all their options are."""
        return self.train.part.path.parent.name


def load(config, tokenizer=None, report=None):
    """The loaders of a config; `tokenizer` is that of a pretrained model."""
    options = dict(config.data)
    cache = check_value("data.cache", options.pop("cache", None), str)
    val_fraction = check_value("data.val_fraction", options.pop("val_fraction", None), Ratio)
    source = build("data", SOURCES, options, {"cache": cache})
    check_objective(config.objective["kind"], source, config)
    shared = {"context_length": config.model.context_length, "architecture": config.model.kind}
    objective = build("objective", OBJECTIVES, config.objective, shared)
    if tokenizer:
        trainer = FromState(tokenizer.state())
    else:
        trainer = build("tokenizer", TOKENIZERS, config.tokenizer, {})
    keep = {"cache": cache, "val_fraction": val_fraction, "report": report}
    corpus = prepare(source, trainer, objective.specials, **keep)
    make = PairLoader if objective.input_kind == "pairs" else TokenLoader
    sizes = {"batch_size": config.train.batch_size, "seed": config.seed}
    splits = corpus.train, corpus.validation
    return Loaders(corpus.tokenizer, *(make(s, objective, corpus.tokenizer, **sizes) for s in splits))


def check_objective(kind, source, config):
    """Refuses an objective that does not fit the source or the model; build() refuses unknown ones."""
    architecture, objective = config.model.kind, OBJECTIVES.get(kind) if isinstance(kind, str) else None
    if objective is None:
        return
    if objective.input_kind != source.input_kind:
        gives = f"data={config.data['kind']} gives {source.input_kind}"
        raise ValueError(f"objective={kind} needs {objective.input_kind}, and {gives}; use objective=auto")
    if architecture not in objective.architectures:
        text = source.input_kind == "text"  # every architecture has an objective for text
        hint = "objective=auto" if text else "plain text, such as data=text"
        kinds = f"{' or '.join(objective.architectures)}, not {architecture}"
        raise ValueError(f"objective={kind} needs a model whose kind is {kinds}; use {hint}")


@contextmanager
def tokenizing_progress():
    """A function for prepare(report=): a progress bar on a terminal, and a line at the end."""
    console, reports = Console(stderr=True), []
    columns = TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", visible=False)

        def report(done, total):
            reports.append((time.perf_counter(), done))
            bar.update(task, completed=done, total=total, visible=True)

        yield report
    if reports:
        (start, first), (end, done) = reports[0], reports[-1]
        speed = f" ({decimal(round((done - first) / (end - start)))}/s)" if end > start else ""
        print(f"tokenized {decimal(done)}{speed}", file=sys.stderr)
