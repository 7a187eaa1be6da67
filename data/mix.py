"""A mix: several sources, each with a share of the examples of a run and epochs of its own."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from configs.compose import with_defaults
from configs.errors import DataError
from configs.registry import Positive, build, check_value
from data.batch import Batch
from data.disk import write_synced
from data.loader import Loader, Loaders, TokenLoader, draw_for
from data.pairs import BatchSampler, PairLoader
from data.prepare import build_once, make_recipe, prepare, train_tokenizer
from data.sources import SOURCES, Source
from data.splits import LOOKAHEAD, HeldOut, hashed_documents, training_shares
from data.store import Corpus
from data.tokenizers.tokenizer import tokenizer_from_state
from data.tokenizers.train import Pretrained, Trainer


@dataclass
class Mix(Source):
    """Other sources, by name, each with its settings and a weight."""

    sources: dict[str, Any]

    def __post_init__(self) -> None:
        usual = {"val_fraction": self.val_fraction, "weight": 1}
        kinds = {name: SOURCES[name] for name in SOURCES if name != "mix"}
        self.weights: dict[str, float] = {}
        self.parts: dict[str, Source] = {}

        for name, node in self.sources.items():
            path = f"data.sources.{name}"
            options = usual | with_defaults(check_value(path, node, dict))
            self.weights[name] = check_value(f"{path}.weight", options.pop("weight"), Positive)
            self.parts[name] = build(path, kinds, options, {"cache": self.cache})

        input_kinds = {part.input_kind for part in self.parts.values()}
        if len(input_kinds) != 1:
            raise ValueError("sources are needed that are all text, all pairs or all conversations")
        [self.input_kind] = input_kinds

    def members(self) -> dict[str, Source]:
        return self.parts

    def drawn(self, positions: ndarray) -> Iterator[ndarray]:
        """How many of the examples before each position come from each source: its share, rounded
        down, of those that the sources before it leave. With weights 3 and 1, of the first 6 examples 4
        are of the first source, and the other 2 of the second. A subclass may let it depend on
        position / batch_size, which is the step; the numbers must never fall."""
        weights = [*self.weights.values()]
        for i, weight in enumerate(weights):
            before = positions * (weight / sum(weights[i:])) // 1
            yield before.astype(np.int64)
            positions = positions - before


def shared_held_out(sources: list[Source]) -> list[HeldOut]:
    """One held-out set for all sources, by content: none trains on what another one validates on. Files
    of val_path come first, then the documents of the smallest source."""
    decided: dict[float, float] = {}
    for source in sources:
        for part in source.held_out():
            decided |= {number: 0.0 for number, _ in hashed_documents(part, [])}

    firsts = [list(islice(hashed_documents(source, []), LOOKAHEAD)) for source in sources]
    for number in sorted(range(len(sources)), key=lambda number: len(firsts[number])):
        decided |= training_shares(sources[number], firsts[number], decided)

    by_hash = []  # sources of many documents, which are assigned by their hash alone
    for source, first in zip(sources, firsts, strict=True):
        if len(first) == LOOKAHEAD and not source.held_out():
            by_hash.append(source.val_fraction)
    highest = max(by_hash, default=0.0)
    held_out = []
    for source in sources:
        own = 0.0 if source.held_out() else source.val_fraction
        held_out.append(HeldOut(decided, highest if highest > own else 0.0))
    return held_out


class PreparedMix(NamedTuple):
    folder: Path
    content_hash: str
    corpora: dict[str, Corpus]


def prepare_mix(mix: Mix, trainer: Trainer, specials: Sequence[str], verify: bool) -> PreparedMix:
    """Each source is a corpus of its own, under one tokenizer that was trained on all of them."""
    sources = [*mix.members().values()]
    recipe = make_recipe(sources, trainer, [specials], "mix")

    def build_folder(draft: Path) -> None:
        held_out = shared_held_out(sources)
        tokenizer = train_tokenizer(sources, held_out, trainer, specials)
        rules = [(sorted(each.shares.items()), each.reserved) for each in held_out]
        index = {"tokenizer": tokenizer.state(), "held_out": rules}
        write_synced(draft / "index.json", json.dumps(index))

    build_once(recipe.folder, build_folder)
    try:
        index = json.loads((recipe.folder / "index.json").read_text())
        trained = Pretrained(tokenizer_from_state(index["tokenizer"]).state())
        rules = [HeldOut(dict(shares), reserved) for shares, reserved in index["held_out"]]
    except (OSError, ValueError, KeyError) as error:
        hint = "remove it and run again to rebuild it"
        raise DataError(f"{recipe.folder} is damaged ({error}); {hint}") from None

    corpora = {}
    for (name, source), held_out in zip(mix.members().items(), rules, strict=True):
        with named(name):
            corpora[name] = prepare(source, trained, specials, held_out, verify)
    hashes = {name: corpus.content_hash for name, corpus in corpora.items()}
    content = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
    return PreparedMix(recipe.folder, content, corpora)


@contextmanager
def named(name: str) -> Iterator[None]:
    """An error says of which source it is."""
    try:
        yield
    except DataError as error:
        raise DataError(f"data.sources.{name}: {error}") from None


@dataclass(kw_only=True)
class MixLoader(Loader):
    """Batches of several sources. A subclass has batch() and widest()."""

    order = "mix-2"
    mix: Mix
    loaders: dict[str, Any]

    def __post_init__(self) -> None:
        members = self.loaders.values()
        self.n = sum(loader.n for loader in members)
        self.n_too_long = sum(loader.n_too_long for loader in members)
        lengths = [loader.tokens_per_example for loader in members]
        self.tokens_per_example = np.average(lengths, weights=[*self.mix.weights.values()])

    @property
    def sources(self) -> dict[str, Any]:
        return self.loaders

    @property
    def n_tokens(self) -> int:
        return sum(loader.n_tokens for loader in self.loaders.values())

    def tokens_seen(self, step: int) -> dict[str, int]:
        drawn = self.mix.drawn(np.array([step * self.batch_size]))
        seen = {}
        for (name, loader), count in zip(self.loaders.items(), drawn, strict=True):
            seen[name] = round(count.item() * loader.tokens_per_example)
        return seen

    def turns(self, start: int, stop: int) -> Iterator[tuple[Any, ndarray, ndarray]]:
        """Of each source: its loader, which of these positions are its own, and the positions in its own
        stream that these are."""
        drawn = self.mix.drawn(np.arange(start, stop + 1))
        for loader, before in zip(self.loaders.values(), drawn, strict=True):
            yield loader, np.diff(before) > 0, np.arange(before[0], before[-1])

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Of one source after the other, each with this limit."""
        return chain.from_iterable(loader.evaluation(limit) for loader in self.loaders.values())


class TokenMix(MixLoader):
    def batch(self, step: int) -> Batch:
        start = step * self.batch_size
        turns = list(self.turns(start, start + self.batch_size))
        order = np.argsort(np.concatenate([np.flatnonzero(is_mine) for _, is_mine, _ in turns]))
        rows = np.concatenate([loader.rows(positions) for loader, _, positions in turns])
        draws = [draw_for(positions, loader.seed) for loader, _, positions in turns]

        def draw(purpose: str, width: int) -> ndarray:
            return np.concatenate([each(purpose, width) for each in draws])[order]

        return self.make(rows[order], draw, step=step)

    def widest(self) -> Batch:
        return next(iter(self.loaders.values())).widest()


class PairMix(MixLoader):
    """Pairs of all sources are sorted together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        members = self.loaders.values()
        self.ends = np.cumsum([loader.n for loader in members])  # of the ids of each source
        widths = np.concatenate([loader.widths for loader in members])
        self.sampler = BatchSampler(self.ids, widths, self.batch_size, self.seed)

    def ids(self, start: int, stop: int) -> ndarray:
        ids = np.empty(stop - start, np.int64)
        for end, (loader, is_mine, own) in zip(self.ends, self.turns(start, stop), strict=True):
            if len(own):
                ids[is_mine] = end - loader.n + loader.ids(own[0], own[-1] + 1)
        return ids

    def batch(self, step: int) -> Batch:
        return self.make(*self.texts(self.sampler.batch(step)), step=step)

    def widest(self) -> Batch:
        return self.make(*self.texts(self.sampler.widest()))

    def texts(self, ids: ndarray) -> list[list[ndarray]]:
        """[sources, targets], or [ids, masks] of conversations"""
        sources: list[Any] = [None] * len(ids)
        targets = list(sources)
        for end, loader in zip(self.ends, self.loaders.values(), strict=True):
            own = ids - end + loader.n
            places = np.flatnonzero((own >= 0) & (own < loader.n))
            for place, *pair in zip(places, *loader.texts(own[places]), strict=True):
                sources[place], targets[place] = pair
        return [sources, targets]


def load_mix(
    mix: Mix, objective: Any, trainer: Trainer, batch_size: int, seed: int, verify: bool
) -> Loaders:
    prepared = prepare_mix(mix, trainer, objective.specials, verify)
    is_text = objective.input_kind == "text"
    tokenizer = next(iter(prepared.corpora.values())).tokenizer
    shared = {"objective": objective, "tokenizer": tokenizer, "batch_size": batch_size}

    def joined(split: str) -> Loader:
        kind = TokenLoader if is_text else PairLoader
        loaders = {}
        for name, corpus in prepared.corpora.items():
            with named(name):
                loaders[name] = kind(part=getattr(corpus, split), seed=(seed, name), **shared)
        mixed = TokenMix if is_text else PairMix
        return mixed(mix=mix, loaders=loaders, seed=seed, **shared)

    train, validation = joined("train"), joined("validation")
    return Loaders(objective, prepared.content_hash, prepared.folder, tokenizer, train, validation)
