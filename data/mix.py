"""A mix of sources: each has a share of the examples, a corpus and epochs of its own; they have one
tokenizer, and what one holds out for validation none trains on."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from configs.compose import read_yaml
from configs.errors import DataError, errors_as
from configs.parts import CONFIGS, code_of
from configs.registry import Positive, build, check_value
from data.batch import Batch
from data.disk import write_synced
from data.loader import Loader, TokenLoader
from data.pairs import PairLoader
from data.prepare import cached, options_of, texts_of
from data.sources import SOURCES, Source
from data.splits import HeldOut, hashed_documents, hold_out
from data.store import TokenFile
from data.tokenizers.train import Pretrained, Trainer


def with_file_settings(node: dict) -> dict:
    """The settings of a source, with those of the file in configs/data that its kind names: the kind
    tinystories becomes hub, with an id. What is ??? in a file has no default."""
    name = node.get("kind")
    path = CONFIGS / f"data/{name}.yaml"
    option: dict = read_yaml(path) if path.exists() else {"kind": name}

    for base in option.pop("defaults", []):  # and at last _self_, which adds nothing
        option = with_file_settings({"kind": base}) | option
    usual = {key: value for key, value in option.items() if value != "???"}
    return usual | node | {"kind": option["kind"]}


@dataclass
class Mix(Source):
    """Other sources, by name, each with its settings and a weight."""

    sources: dict

    def __post_init__(self) -> None:
        kinds = {name: SOURCES[name] for name in SOURCES if name != "mix"}
        shared = {"cache": self.cache, "document_mask": self.document_mask}  # set for all at once
        self.weights = []
        self.members = {}
        for name, node in self.sources.items():
            path = f"data.sources.{name}"
            options = {"val_fraction": self.val_fraction, "weight": 1}
            options |= with_file_settings(check_value(path, node, dict))
            self.weights.append(check_value(f"{path}.weight", options.pop("weight"), Positive))
            self.members[name] = build(path, kinds, options, shared)

        input_kinds = {member.input_kind for member in self.members.values()}
        if len(input_kinds) != 1:
            raise ValueError(
                "the sources must be all text, all pairs, all conversations or all labelled texts"
            )
        [self.input_kind] = input_kinds

    def drawn(self, positions: Any) -> Iterator:
        """Yield for each source how many of the examples before each position it gives: its share,
        rounded down, of those that the sources before it leave. With weights 3 and 1, the first 6
        examples are 4 of the first source and 2 of the second. A subclass may let the shares depend
        on position / batch_size, which is the step; at each position, one source grows by one."""
        left = positions
        for i, weight in enumerate(self.weights):
            given = left * (weight / sum(self.weights[i:])) // 1
            yield given
            left = left - given


SOURCES["mix"] = Mix


# ---- what the sources share: a tokenizer, and what is held out


def load_shared(mix: Mix, trainer: Trainer, specials: Sequence[str]) -> tuple[Pretrained, HeldOut]:
    """The tokenizer and what is held out; from the cache, or made now."""
    sources = [*mix.members.values()]

    def fill(draft: Path) -> None:
        held_out = hold_out_of_all(sources)
        tokenizer = trainer.train(partial(texts_in_turn, sources, held_out), specials)
        write_synced(draft / "shared.json", json.dumps([tokenizer.state(), held_out]))

    content = [
        [source.version(), options_of(source, trainer, specials), code_of(source)]
        for source in sources
    ]
    folder = cached(mix, [content, code_of(trainer)], fill)

    with errors_as(DataError, f"{folder} is damaged; remove it and run again to rebuild it"):
        state, held_out = json.loads((folder / "shared.json").read_text())
    return Pretrained(state), HeldOut(*held_out)


def texts_in_turn(sources: list[Source], held_out: HeldOut, include_val: bool) -> Iterator[str]:
    """A text of each source, then the next one of each, as long as they have more."""
    for turn in zip_longest(*(texts_of(source, held_out, include_val) for source in sources)):
        yield from filter(None, turn)


def hold_out_of_all(sources: list[Source]) -> HeldOut:
    """One held-out set: no source trains on what another one validates on. The files of a val_path
    are held out whole; of a single text only the end, even if another source would take it all."""
    alone = [hold_out(source) for source in sources]
    exceptions: dict = {}
    for own in alone:
        for key, share in own.exceptions.items():
            exceptions[key] = max(share, exceptions.get(key, 0.0))

    for source in sources:
        for part in source.validation_sources():
            exceptions |= {key: 0.0 for key, _ in hashed_documents(part, [])}
    return HeldOut(exceptions, max(part.held_out_fraction for part in alone))


# ---- loaders


class JoinedFiles:
    """One split of all sources: their files, and what these are together."""

    def __init__(self, files: list[TokenFile]):
        self.parts = files
        self.folder = files[0].folder
        self.split = files[0].split
        self.n_tokens = sum(file.n_tokens for file in files)
        self.n_bytes = sum(file.n_bytes for file in files)
        self.n_items = sum(file.n_items for file in files)


@dataclass
class MixLoader(Loader):
    """The examples of several loaders, with ids that begin where those of the one before end."""

    mix: Mix
    loaders: list

    def __post_init__(self) -> None:  # in place of those of TokenLoader and PairLoader
        sizes = [loader.n for loader in self.loaders]
        self.firsts = np.cumsum([0, *sizes[:-1]])

        self.n = sum(sizes)
        self.n_tokens = sum(loader.n_tokens for loader in self.loaders)
        means = [loader.tokens_per_example for loader in self.loaders]
        self.tokens_per_example = np.average(means, weights=self.mix.weights)

    def example_ids(self, positions: ndarray) -> ndarray:
        """Each source goes through epochs of its own, as far as it is drawn."""
        ids = np.full(len(positions), -1)
        counts = self.mix.drawn(positions), self.mix.drawn(positions + 1)
        for loader, first, before, after in zip(self.loaders, self.firsts, *counts, strict=True):
            is_mine = after > before  # this position makes the count grow
            ids[is_mine] = first + loader.example_ids(before[is_mine].astype(int))
        if ids.min() < 0:
            raise ValueError("drawn() of a mix must grow by one, in one source, at each position")
        return ids

    def example(self, i: int) -> Any:
        # the last loader whose ids do not begin after i
        number = np.searchsorted(self.firsts, i, "right") - 1
        return self.loaders[number].example(i - self.firsts[number])

    def tokens_seen(self, step: int) -> dict[str, int]:
        counts = self.mix.drawn(step * self.batch_size)
        seen = zip(self.mix.members, self.loaders, counts, strict=True)
        return {f"tokens_{name}": round(n * loader.tokens_per_example) for name, loader, n in seen}

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Batches of one source each. A limit is shared by size, with at least one example each."""
        for name, loader in zip(self.mix.members, self.loaders, strict=True):
            own_limit = limit and math.ceil(limit * loader.n / self.n)
            for batch in loader.evaluation(own_limit):
                yield replace(batch, source=name)


class TokenMix(MixLoader, TokenLoader):
    """Sequences of several texts."""


class PairMix(MixLoader, PairLoader):
    """Pairs of several sources, sorted by length together: apart, they would need more padding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.widths = np.concatenate([loader.widths for loader in self.loaders])


def load_mix(mix: Mix, trainer: Trainer, specials: Sequence[str], seed: int, load: Callable) -> Any:
    """The Loaders of a mix. load(source, trainer, seed, held_out): that of load_data(), which gives
    those of one source."""
    pretrained, held_out = load_shared(mix, trainer, specials)
    parts = []
    for name, source in mix.members.items():
        try:
            parts.append(load(source, pretrained, (seed, name), held_out))
        except DataError as error:
            raise DataError(f"data.sources.{name}: {error}") from None

    def join(loaders: list) -> Any:
        kind: Any = TokenMix if mix.input_kind == "text" else PairMix
        file = JoinedFiles([loader.file for loader in loaders])
        first = loaders[0]
        return kind(file, first.objective, first.tokenizer, first.batch_size, seed, mix, loaders)

    hashes = "".join(part.content_hash for part in parts)
    return parts[0]._replace(
        content_hash=hashlib.sha256(hashes.encode()).hexdigest(),
        train=join([part.train for part in parts]),
        validation=join([part.validation for part in parts]),
    )
