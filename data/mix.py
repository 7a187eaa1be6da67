"""A mix: several sources, each with a share of the examples of a run and epochs of its own."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from configs.compose import with_defaults
from configs.errors import DataError
from configs.registry import Positive, build, check_value
from data.batch import Batch
from data.disk import write_synced
from data.loader import LOADERS, Loader, Loaders, draw_for
from data.pairs import BatchSampler
from data.prepare import build_once, make_recipe, prepare, train_tokenizer
from data.sources import SOURCES, Source
from data.splits import LOOKAHEAD, HeldOut, hashed_documents, training_shares
from data.store import damaged
from data.tokenizers.tokenizer import State, tokenizer_from_state
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


def shared_held_out(sources: list[Source]) -> HeldOut:
    """One held-out set for all sources, by content: none trains on what another one validates on. Files
    of val_path come first, then the documents of the smallest source."""
    decided: dict[float, float] = {}
    reserved = 0.0
    firsts = []

    for source in sources:
        parts = source.held_out()
        for part in parts:
            decided |= {number: 0.0 for number, _ in hashed_documents(part, [])}
        if not parts:
            reserved = max(reserved, source.val_fraction)

        first = list(islice(hashed_documents(source, []), LOOKAHEAD))
        firsts.append((len(first), first, source))

    for _, first, source in sorted(firsts, key=itemgetter(0)):
        decided |= training_shares(source, first, decided)

    return HeldOut(decided, reserved)


@dataclass(kw_only=True)
class MixLoader(Loader):
    """Batches of several sources. A subclass has batch() and widest()."""

    order = "mix-2"
    mix: Mix
    loaders: list[Any]

    def __post_init__(self) -> None:
        lengths = [loader.tokens_per_example for loader in self.loaders]
        weights = [*self.mix.weights.values()]
        self.tokens_per_example = np.average(lengths, weights=weights)

        self.n = sum(loader.n for loader in self.loaders)
        self.n_tokens = sum(loader.n_tokens for loader in self.loaders)
        self.n_too_long = sum(loader.n_too_long for loader in self.loaders)

    @property
    def sources(self) -> dict[str, Any]:
        return dict(zip(self.mix.weights, self.loaders, strict=True))

    def tokens_seen(self, step: int) -> dict[str, int]:
        drawn = self.mix.drawn(np.array([step * self.batch_size]))
        seen = {}

        for (name, loader), [count] in zip(self.sources.items(), drawn, strict=True):
            seen[name] = round(count * loader.tokens_per_example)

        return seen

    def turns(self, start: int, stop: int) -> Iterator[tuple[Any, ndarray, ndarray]]:
        """Of each source: its loader, at which of these positions it has its turn, and the positions in
        its own stream that these are."""
        drawn = self.mix.drawn(np.arange(start, stop + 1))

        for loader, before in zip(self.loaders, drawn, strict=True):
            places = np.flatnonzero(np.diff(before))
            yield loader, places, before[places]

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Of one source after the other, each with this limit."""
        return chain.from_iterable(loader.evaluation(limit) for loader in self.loaders)


class TokenMix(MixLoader):
    def batch(self, step: int) -> Batch:
        start = step * self.batch_size
        turns = list(self.turns(start, start + self.batch_size))

        places = np.concatenate([places for _, places, _ in turns])
        rows = np.concatenate([loader.rows(positions) for loader, _, positions in turns])
        order = np.argsort(places)

        def draw(purpose: str, width: int) -> ndarray:
            words = []
            for loader, _, positions in turns:
                own = draw_for(positions, loader.seed)
                words.append(own(purpose, width))

            return np.concatenate(words)[order]

        return self.make(rows[order], draw, step=step)

    def widest(self) -> Batch:
        return self.loaders[0].widest()


class PairMix(MixLoader):
    """Pairs of all sources are sorted together. The ids of one follow those of the one before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = np.concatenate([loader.widths for loader in self.loaders])
        self.sampler = BatchSampler(self.ids, widths, self.batch_size, self.seed)

    def ids(self, positions: ndarray) -> ndarray:
        ids = np.empty_like(positions)
        first = 0

        for loader, places, own in self.turns(positions[0], positions[-1] + 1):
            ids[places] = first + loader.ids(own)
            first += loader.n

        return ids

    def batch(self, step: int) -> Batch:
        return self.make(*self.texts(self.sampler.batch(step)), step=step)

    def widest(self) -> Batch:
        return self.make(*self.texts(self.sampler.widest()))

    def texts(self, ids: ndarray) -> list[list[ndarray]]:
        """[sources, targets], or [ids, masks] of conversations"""
        pairs: list[Any] = [None] * len(ids)

        for loader in self.loaders:
            is_own = (ids >= 0) & (ids < loader.n)
            places = np.flatnonzero(is_own)
            for place, *pair in zip(places, *loader.texts(ids[places]), strict=True):
                pairs[place] = pair
            ids = ids - loader.n

        return [list(side) for side in zip(*pairs, strict=True)]


def agree(mix: Mix, trainer: Trainer, specials: Sequence[str]) -> tuple[Path, State, HeldOut]:
    """What the sources have in common: a folder in the cache, a tokenizer that was trained on all of
    them, and what is held out."""
    sources = [*mix.members().values()]
    recipe = make_recipe(sources, trainer, [specials], "mix")

    def build_folder(draft: Path) -> None:
        held_out = shared_held_out(sources)
        tokenizer = train_tokenizer(sources, held_out, trainer, specials)

        index = [tokenizer.state(), [*held_out.shares.items()], held_out.reserved]
        write_synced(draft / "index.json", json.dumps(index))

    build_once(recipe.folder, build_folder)

    with damaged(recipe.folder):
        text = (recipe.folder / "index.json").read_text()
        state, shares, reserved = json.loads(text)
        return recipe.folder, state, HeldOut(dict(shares), reserved)


def load_mix(mix: Mix, trainer: Trainer, verify: bool, **shared: Any) -> Loaders:
    """Each source is a corpus of its own, under one tokenizer. shared: objective, batch_size, seed."""
    objective = shared["objective"]
    folder, state, held_out = agree(mix, trainer, objective.specials)
    shared["tokenizer"] = tokenizer_from_state(state)

    kind = LOADERS[objective.input_kind]
    train = []
    validation = []
    hashes = {}

    for name, source in mix.members().items():
        try:
            corpus = prepare(source, Pretrained(state), objective.specials, held_out, verify)
            hashes[name] = corpus.content_hash

            own = shared | {"seed": (shared["seed"], name)}
            train.append(kind(part=corpus.train, **own))
            validation.append(kind(part=corpus.validation, **own))
        except DataError as error:
            raise DataError(f"data.sources.{name}: {error}") from None

    content = hashlib.sha256(json.dumps(hashes).encode())
    mixed = TokenMix if objective.input_kind == "text" else PairMix

    return Loaders(
        objective,
        content.hexdigest(),
        folder,
        shared["tokenizer"],
        mixed(mix=mix, loaders=train, **shared),
        mixed(mix=mix, loaders=validation, **shared),
    )
