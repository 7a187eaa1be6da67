"""From a config to loaders: builds the source, objective and tokenizer it names, and prepares the corpus."""

import sys
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from configs.cli import print
from configs.registry import Ratio, build, check_value
from data.loader import PairLoader, TokenLoader
from data.objectives import OBJECTIVES
from data.prepare import prepare
from data.sources import SOURCES
from data.tokenizers.tokenizer import Tokenizer, tokenizer_from_state
from data.tokenizers.train import TOKENIZERS

LARGE = 10**7  # bytes of text, which may take a while


class Loaders(NamedTuple):
    objective: str
    tokenizer: Tokenizer
    train: TokenLoader | PairLoader
    validation: TokenLoader | PairLoader

    @property
    def name(self):
        """Of the corpus, equal only where the text, the tokenizer and all their options are."""
        return self.train.part.path.parent.name


def build_data(config):
    """(source, objective, cache, val_fraction) of a config; no text is read."""
    options, architecture = dict(config.data), config.model.kind
    cache = check_value("data.cache", options.pop("cache", None), str)
    val_fraction = check_value("data.val_fraction", options.pop("val_fraction", None), Ratio)
    if not cache:
        raise ValueError("data.cache is empty; give a folder")
    source = build("data", SOURCES, options, {"cache": cache})
    shared = {"context_length": config.model.context_length, "architecture": architecture}
    objective = build("objective", OBJECTIVES, config.objective, shared)
    name = f"objective={config.objective['kind']}"
    if objective.input_kind != source.input_kind:
        text = f"data={options['kind']} gives {source.input_kind}"
        raise ValueError(f"{name} needs {objective.input_kind}, and {text}; use objective=auto")
    if architecture not in objective.architectures:
        # every architecture has an objective for text
        hint = "objective=auto" if source.input_kind == "text" else "plain text, such as data=text"
        kinds = " or ".join(objective.architectures)
        raise ValueError(
            f"{name} needs a model whose kind is {kinds}, not {architecture}; use {hint}"
        )
    return source, objective, cache, val_fraction


def load(config, tokenizer=None, report=None):
    """The loaders of a config; `tokenizer` is that of a pretrained model."""
    source, objective, cache, val_fraction = build_data(config)
    pretrained = tokenizer and FromState(tokenizer.state())
    trainer = pretrained or build("tokenizer", TOKENIZERS, config.tokenizer, {})
    corpus = prepare(source, trainer, objective.specials, cache, val_fraction, report)
    make = PairLoader if objective.input_kind == "pairs" else TokenLoader
    sizes = {"batch_size": config.train.batch_size, "seed": config.seed}
    splits = corpus.train, corpus.validation
    return Loaders(
        config.objective["kind"],
        corpus.tokenizer,
        *(make(s, objective, corpus.tokenizer, **sizes) for s in splits),
    )


class FromState:
    """A trainer that gives the tokenizer of a pretrained model."""

    def __init__(self, state):
        self.state = state  # which a corpus in the cache depends on

    def train(self, texts, specials):
        tokenizer = tokenizer_from_state(self.state)
        if missing := [name for name in specials if name not in tokenizer.specials]:
            known = ", ".join(tokenizer.specials)
            reason = (
                f"this objective needs the special token {missing[0]!r}; the tokenizer has {known}"
            )
            raise ValueError(f"{reason}; start from a model that was trained with this objective")
        return tokenizer


@contextmanager
def tokenizing_progress():
    """A function for prepare(report=): a progress bar on a terminal, else a line about a large text; and a
    line at the end."""
    console = Console(stderr=True)
    columns = TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        bar.add_task("", visible=False)
        [task] = bar.tasks

        def report(done, total):
            if not done and not console.is_terminal and (total or LARGE) >= LARGE:
                print(f"tokenizing {decimal(total) if total else 'the text'} ...", file=sys.stderr)
            bar.update(task.id, completed=done, total=total, visible=True)

        yield report
    if task.completed:
        speed = f" ({decimal(round(task.speed))}/s)" if task.speed else ""
        print(f"tokenized {decimal(task.completed)}{speed}", file=sys.stderr)
