"""A mix: several sources, each with a share of the examples of a run and epochs of its own."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from configs.compose import with_defaults
from configs.errors import DataError, errors_as
from configs.registry import build, check_value
from data.batch import Batch
from data.disk import write_synced
from data.loader import Loader, Loaders, draw_for
from data.pairs import BatchSampler, PairLoader
from data.prepare import build_once, cache_folder, load_source, train_tokenizer
from data.sources import SOURCES, Source
from data.splits import HeldOut, hold_out
from data.store import REBUILD
from data.tokenizers.train import Pretrained, Trainer


@dataclass
class Mix(Source):
    """Other sources, by name, each with its settings and a weight."""

    sources: dict[str, Any]

    def __post_init__(self) -> None:
        kinds = {name: SOURCES[name] for name in SOURCES if name != "mix"}
        self.members = {}  # type: ignore[misc]
        for name, node in self.sources.items():
            path = f"data.sources.{name}"
            options = with_defaults(check_value(path, node, dict))
            options.setdefault("val_fraction", self.val_fraction)
            self.members[name] = build(path, kinds, options, {"cache": self.cache})

        self.weights = {name: source.weight for name, source in self.members.items()}
        input_kinds = {source.input_kind for source in self.members.values()}
        if len(input_kinds) != 1:
            raise ValueError("sources are needed that are all text, all pairs or all conversations")
        [self.input_kind] = input_kinds

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


@dataclass(kw_only=True)
class MixLoader(Loader):
    """Batches of several sources. A subclass has batch() and widest()."""

    order = "mix-2"
    mix: Mix
    loaders: list[Any]

    def __post_init__(self) -> None:
        lengths = [loader.tokens_per_example for loader in self.loaders]
        self.tokens_per_example = np.average(lengths, weights=[*self.mix.weights.values()])
        self.n = sum(loader.n for loader in self.loaders)
        self.n_tokens = sum(loader.n_tokens for loader in self.loaders)
        self.n_too_long = sum(loader.n_too_long for loader in self.loaders)

    @property
    def sources(self) -> dict[str, Any]:
        return dict(zip(self.mix.weights, self.loaders, strict=True))

    def tokens_seen(self, step: int) -> dict[str, int]:
        drawn = self.mix.drawn(np.array([step * self.batch_size]))
        counts = zip(self.sources.items(), drawn, strict=True)
        return {name: round(n * loader.tokens_per_example) for (name, loader), [n] in counts}

    def gather(self, start: int, stop: int, read: Callable[[int, ndarray], ndarray]) -> ndarray:
        """What read(number, positions) gives of each source, in the order of their turns. The positions
        are those in its own stream."""
        before = np.stack([*self.mix.drawn(np.arange(start, stop + 1))])
        numbers, places = np.nonzero(np.diff(before))
        own = before[numbers, places]
        parts = [read(number, own[numbers == number]) for number in range(len(before))]
        return np.concatenate(parts)[np.argsort(places)]

    def evaluation(self, limit: int | None = None) -> Iterator[Batch]:
        """Of one source after the other, each with this limit."""
        return chain.from_iterable(loader.evaluation(limit) for loader in self.loaders)


class TokenMix(MixLoader):
    def batch(self, step: int) -> Batch:
        start = step * self.batch_size
        gather = partial(self.gather, start, start + self.batch_size)

        def draw(purpose: str, width: int) -> ndarray:
            return gather(lambda n, own: draw_for(own, self.loaders[n].seed)(purpose, width))

        rows = gather(lambda n, own: self.loaders[n].rows(own))
        return self.make(rows, draw, step=step)

    def widest(self) -> Batch:
        return self.loaders[0].widest()


class PairMix(MixLoader, PairLoader):
    """Pairs of all sources are sorted together. The ids of one follow those of the one before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.firsts = np.cumsum([0, *(loader.n for loader in self.loaders)])[:-1]
        self.widths = np.concatenate([loader.widths for loader in self.loaders])
        self.sampler = BatchSampler(self.ids, self.widths, self.batch_size, self.seed)

    def ids(self, positions: ndarray) -> ndarray:
        def read(number: int, own: ndarray) -> ndarray:
            return self.firsts[number] + self.loaders[number].ids(own)

        return self.gather(positions[0], positions[-1] + 1, read)

    def pair(self, i: int) -> list[ndarray]:
        number = np.searchsorted(self.firsts, i, "right") - 1
        return self.loaders[number].pair(i - self.firsts[number])


def load_mix(mix: Mix, trainer: Trainer, verify: bool, **shared: Any) -> Loaders:
    """Each source is a corpus of its own. What they have in common is in a folder of the cache: a
    tokenizer that was trained on all of them, and what is held out. shared: as in load_source."""
    objective = shared["objective"]
    sources = [*mix.members.values()]
    folder, *_ = cache_folder("mix", sources, trainer, objective.specials)

    def build_folder(draft: Path) -> None:
        held_out = hold_out(sources)
        tokenizer = train_tokenizer(sources, held_out, trainer, objective.specials)
        write_synced(draft / "index.json", json.dumps([tokenizer.state(), held_out]))

    build_once(folder, build_folder)
    with errors_as(DataError, f"{folder} is damaged; {REBUILD}"):
        state, held_out = json.loads((folder / "index.json").read_text())

    parts = []
    for name, source in mix.members.items():
        own = shared | {"seed": (shared["seed"], name)}
        try:
            parts.append(load_source(source, Pretrained(state), verify, HeldOut(*held_out), **own))
        except DataError as error:
            raise DataError(f"data.sources.{name}: {error}") from None

    content = "-".join(part.content_hash for part in parts)
    shared |= {"mix": mix, "tokenizer": parts[0].tokenizer}
    mixed = TokenMix if objective.input_kind == "text" else PairMix
    train = mixed(loaders=[part.train for part in parts], **shared)
    validation = mixed(loaders=[part.validation for part in parts], **shared)
    return Loaders(objective, content, folder, train.tokenizer, train, validation)
