"""From a config to loaders: its source, objective and tokenizer, and the corpus they make."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from configs.cli import print
from configs.registry import Ratio, build, check_value
from configs.schema import Config
from data.loader import PairLoader, TokenLoader
from data.objectives import OBJECTIVES, Objective
from data.prepare import Report, prepare
from data.sources import SOURCES, Source
from data.tokenizers.tokenizer import State, Tokenizer, tokenizer_from_state
from data.tokenizers.train import TOKENIZERS, Texts

LARGE = 10**7  # bytes of text, which may take a while


class Loaders(NamedTuple):
    objective: str
    tokenizer: Tokenizer
    train: TokenLoader | PairLoader
    validation: TokenLoader | PairLoader

    @property
    def name(self) -> str:
        """Of the corpus, equal only where the tokens, the tokenizer and all options are."""
        return self.train.part.content


def build_data(config: Config) -> tuple[Source, Objective, str, float]:
    """(source, objective, cache, val_fraction) of a config; no text is read."""
    options = dict(config.data)
    cache = check_value("data.cache", options.pop("cache", None), str)
    val_fraction = check_value("data.val_fraction", options.pop("val_fraction", None), Ratio)
    if not cache:
        raise ValueError("data.cache is empty; give a folder")
    source = build("data", SOURCES, options, {"cache": cache})
    architecture = config.model.kind
    shared = {"context_length": config.model.context_length, "architecture": architecture}
    objective = build("objective", OBJECTIVES, config.objective, shared)
    fits_data = objective.input_kind == source.input_kind
    if not fits_data or architecture not in objective.architectures:
        needed = " or ".join(objective.architectures)
        raise ValueError(
            f"objective={config.objective['kind']} needs {objective.input_kind} and a model whose "
            f"kind is {needed}; data={options['kind']} gives {source.input_kind}, and this model "
            f"is of the kind {architecture}; for text, objective=auto suits every model"
        )

    return source, objective, cache, val_fraction


def load(config: Config, tokenizer: Tokenizer | None = None) -> Loaders:
    """The loaders of a config; `tokenizer` is that of a pretrained model."""
    source, objective, cache, val_fraction = build_data(config)

    if tokenizer:
        trainer = Pretrained(tokenizer.state())
    else:
        trainer = build("tokenizer", TOKENIZERS, config.tokenizer, {})

    with tokenizing_progress() as report:
        corpus = prepare(source, trainer, objective.specials, cache, val_fraction, report)

    loader = PairLoader if objective.input_kind == "pairs" else TokenLoader
    train, validation = (
        loader(part, objective, corpus.tokenizer, config.train.batch_size, config.seed)
        for part in (corpus.train, corpus.validation)
    )
    return Loaders(config.objective["kind"], corpus.tokenizer, train, validation)


@dataclass
class Pretrained:
    """A trainer that gives the tokenizer of a pretrained model."""

    state: State

    def train(self, texts: Texts, specials: Sequence[str]) -> Tokenizer:
        tokenizer = tokenizer_from_state(self.state)
        for name in specials:
            if name not in tokenizer.specials:
                known = ", ".join(tokenizer.specials)
                need = f"this objective needs the special token {name!r}; the tokenizer has {known}"
                raise ValueError(f"{need}; start from a model that was trained with this objective")
        return tokenizer


@contextmanager
def tokenizing_progress() -> Iterator[Report]:
    """A function for prepare(report=): a line about a large text, and a bar on a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    is_hidden = not console.is_terminal

    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        task = progress.add_task("", visible=False)

        def report(done: int, total: int | None) -> None:
            if not done and (total or LARGE) >= LARGE:
                print(f"tokenizing {decimal(total) if total else 'a text'} ...", file=sys.stderr)
            progress.update(task, completed=done, total=total, visible=True)

        yield report
