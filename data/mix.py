"""A mix: several sources, each with a share of the examples, its own corpus and its own epochs."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from operator import itemgetter
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


def with_defaults(source: dict) -> dict:
    """A source of a mix, whose kind is the name of an option: {kind: tinystories} has the kind hub,
    with the settings of that file. It must set what is ??? there."""
    name = source.get("kind")
    path = CONFIGS / f"data/{name}.yaml"
    option: dict = read_yaml(path) if path.exists() else {"kind": name}

    for base in option.pop("defaults", []):
        option = with_defaults({"kind": base}) | option
    usual = {key: value for key, value in option.items() if value != "???"}
    return usual | source | {"kind": option["kind"]}


@dataclass
class Mix(Source):
    """Other sources, by name, each with its settings and a weight."""

    sources: dict

    def __post_init__(self) -> None:
        shared = {"cache": self.cache, "document_mask": self.document_mask}  # set for all at once
        usual = {"val_fraction": self.val_fraction, "weight": 1}
        kinds = {name: SOURCES[name] for name in SOURCES if name != "mix"}
        self.weights = {}
        self.members = {}

        for name, node in self.sources.items():
            path = f"data.sources.{name}"
            options = usual | with_defaults(check_value(path, node, dict))
            self.weights[name] = check_value(f"{path}.weight", options.pop("weight"), Positive)
            self.members[name] = build(path, kinds, options, shared)

        input_kinds = {member.input_kind for member in self.members.values()}
        if len(input_kinds) != 1:
            raise ValueError("the sources must be all text, all pairs or all conversations")
        [self.input_kind] = input_kinds

    def drawn(self, positions: Any) -> Iterator:
        """Yield for each source how many of the examples before each position it gives: its share,
        rounded down, of those that the sources before it leave. With weights 3 and 1, the first 6
        examples are 4 of the first source and 2 of the second. A subclass may let the shares depend
        on position / batch_size, which is the step; at each position, one source grows by one."""
        weights = [*self.weights.values()]

        for i, weight in enumerate(weights):
            before = positions * (weight / sum(weights[i:])) // 1
            yield before
            positions = positions - before


SOURCES["mix"] = Mix


# ---- what the sources share: a tokenizer, and what is held out


def share(mix: Mix, trainer: Trainer, specials: Sequence[str]) -> tuple[Pretrained, HeldOut]:
    """The tokenizer, trained on all sources in turn, and what is held out; from the cache, or made
    now."""
    sources = [*mix.members.values()]

    def build(draft: Path) -> None:
        held_out = hold_out_of_all(sources)

        def texts(include_val: bool) -> Iterator[str]:
            turns = zip_longest(*(texts_of(source, held_out, include_val) for source in sources))
            return filter(None, chain.from_iterable(turns))

        tokenizer = trainer.train(texts, specials)
        write_synced(draft / "shared.json", json.dumps([tokenizer.state(), held_out]))

    content = [
        [source.version(), options_of(source, trainer, specials), code_of(source)]
        for source in sources
    ]
    folder = cached(mix, [content, code_of(trainer)], build)

    with errors_as(DataError, f"{folder} is damaged; remove it and run again to rebuild it"):
        state, held_out = json.loads((folder / "shared.json").read_text())
    return Pretrained(state), HeldOut(*held_out)


def hold_out_of_all(sources: list[Source]) -> HeldOut:
    """One held-out set: no source trains on what another one validates on. Of a single text, the
    end is held out even if another source would hold out the whole; a val_path comes first."""
    alone = [hold_out(source) for source in sources]
    shares = [item for part in alone for item in part.exceptions.items()]
    files = [part for source in sources for part in source.validation_sources()]
    in_files = [(key, 0.0) for part in files for key, _ in hashed_documents(part, [])]
    shares = sorted(shares, key=itemgetter(1)) + in_files  # the last one counts
    return HeldOut(dict(shares), max(part.held_out_fraction for part in alone))


# ---- loaders


class JoinedFiles:
    """The size of all sources together."""

    def __init__(self, parts: list[TokenFile]):
        self.folder = parts[0].folder
        self.split = parts[0].split
        sizes = [(part.n_tokens, part.n_bytes, part.n_items) for part in parts]
        self.n_tokens, self.n_bytes, self.n_items = np.sum(sizes, axis=0).tolist()


class MixLoader(Loader):
    """The examples of several loaders, with ids that begin where those of the one before end."""

    def __init__(self, mix: Mix, loaders: list, seed: int):
        self.mix = mix
        self.loaders = loaders
        file: Any = JoinedFiles([loader.file for loader in loaders])
        first = loaders[0]

        # without the __post_init__ of TokenLoader and PairLoader
        Loader.__init__(self, file, first.objective, first.tokenizer, first.batch_size, seed)
        sizes = [loader.n for loader in loaders]
        self.firsts = np.cumsum([0, *sizes[:-1]])

        self.n = sum(sizes)
        self.n_tokens = sum(loader.n_tokens for loader in loaders)
        means = [loader.tokens_per_example for loader in loaders]
        self.tokens_per_example = np.average(means, weights=[*mix.weights.values()])

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
        number = np.searchsorted(self.firsts, i, "right") - 1
        return self.loaders[number].example(i - self.firsts[number])

    def tokens_seen(self, step: int) -> dict[str, int]:
        counts = self.mix.drawn(step * self.batch_size)
        seen = zip(self.mix.members, self.loaders, counts, strict=True)
        return {f"tokens_{name}": round(n * loader.tokens_per_example) for name, loader, n in seen}

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Batches of one source each. A limit is shared by size, with at least one example each."""
        for name, loader in zip(self.mix.members, self.loaders, strict=True):
            share = limit and math.ceil(limit * loader.n / self.n)
            for batch in loader.evaluation(share):
                yield replace(batch, source=name)


class TokenMix(MixLoader, TokenLoader):
    """Sequences of several texts."""


class PairMix(MixLoader, PairLoader):
    """Pairs of several sources, sorted by length together: apart, they would need more padding."""

    @cached_property
    def widths(self) -> ndarray:
        return np.concatenate([loader.widths for loader in self.loaders])


def load_mix(mix: Mix, trainer: Trainer, specials: Sequence[str], seed: int, load: Callable) -> Any:
    """The Loaders of a mix; load(source, trainer, seed, held_out) gives those of a source."""
    trainer, held_out = share(mix, trainer, specials)
    parts = []

    for name, source in mix.members.items():
        try:
            parts.append(load(source, trainer, (seed, name), held_out))
        except DataError as error:
            raise DataError(f"data.sources.{name}: {error}") from None

    hashes = "".join(part.content_hash for part in parts)
    kind = TokenMix if mix.input_kind == "text" else PairMix
    return parts[0]._replace(
        content_hash=hashlib.sha256(hashes.encode()).hexdigest(),
        train=kind(mix, [part.train for part in parts], seed),
        validation=kind(mix, [part.validation for part in parts], seed),
    )
