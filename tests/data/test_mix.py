"""A mix of sources: each has its share of the examples and goes through epochs of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.compose import compose_node, to_config
from configs.errors import DataError
from data.corpus import load_data
from data.mix import hold_out_of_all
from tests.data.corpora import source

LENGTHS = {"a": 900, "b": 2500, "c": 400}
WEIGHTS = {"a": 3, "b": 2, "c": 0.5}
CONFIG = to_config(compose_node(["size=tiny", "model.context_length=16", "tokenizer=byte"]))
TRAIN = replace(CONFIG.train, batch_size=11)


def load(sources, val_fraction=0.05, **changes):
    mix = {"kind": "mix", "cache": "cache", "val_fraction": val_fraction, "sources": sources}
    return load_data(replace(CONFIG, **{"data": mix, "train": TRAIN} | changes))


@pytest.fixture
def nodes():
    """Sources of text, whose tokens tell them apart."""
    for name, length in LENGTHS.items():
        Path(f"{name}.txt").write_text(name * length)
    return {
        name: {"kind": "text", "path": f"{name}.txt", "weight": WEIGHTS[name]} for name in LENGTHS
    }


def test_every_source_has_its_share_and_its_epochs(nodes):
    train = load(nodes | {"again": nodes["a"]}).train
    ids = train.example_ids(np.arange(3000))
    numbers = np.searchsorted(train.firsts, ids, "right") - 1
    shares = np.divide([3, 2, 0.5, 3], 8.5)
    for n in (10, 137, 3000):
        assert np.abs(np.bincount(numbers[:n], minlength=4) - n * shares).max() <= 2
    orders = []
    for number, part in enumerate(train.loaders):
        stream = ids[numbers == number] - train.firsts[number]
        epochs = stream[: len(stream) // part.n * part.n].reshape(-1, part.n)
        assert (np.sort(epochs) == np.arange(part.n)).all()
        orders.append(epochs[0].tolist())
    assert orders[0] != orders[3], "the same text, in an order of its own"
    assert np.array_equal(train.example_ids(np.arange(900, 950)), ids[900:950])


def test_a_curriculum_over_the_sources(nodes):
    """The shares of a mix of one's own may follow the step: here all of a, then all of b."""
    train = load({name: nodes[name] for name in "ab"}).train
    train.mix.drawn = lambda positions: (np.minimum(positions, 8), np.maximum(positions - 8, 0))
    is_second = train.example_ids(np.arange(16)) >= train.firsts[1]
    assert is_second.tolist() == [False] * 8 + [True] * 8
    train.mix.drawn = lambda positions: (positions // 2, positions // 2)
    with pytest.raises(ValueError, match="must grow by one, in one source, at each position"):
        train.example_ids(np.arange(16))


def test_rows_are_of_one_source_and_alternate(nodes):
    train = load(nodes).train
    rows = torch.cat([train.batch(step).targets for step in range(20)])
    assert (rows == rows[:, :1]).all()
    names = [*map(chr, rows[:, 0])]
    numbers = np.searchsorted(train.firsts, train.example_ids(np.arange(220)), "right") - 1
    assert names == ["abc"[number] for number in numbers]
    for start in range(0, 215, 5):
        assert len({*names[start : start + 5]}) > 1, "no process has rows of one source only"


def test_an_evaluation_is_that_of_each_source(nodes):
    whole = load(nodes).validation
    batches = [*whole.evaluation()]
    assert sum(batch.count for batch in batches) == whole.n_tokens - 3
    for batch in batches:
        assert {*map(chr, batch.targets.flatten())} - {chr(256)} == {batch.source}
    some = [(batch.source, len(batch.targets)) for batch in whole.evaluation(2)]
    assert some == [("a", 1), ("b", 2), ("c", 1), ("c", 1)], "by size; c has one, and a rest"


def test_pairs_of_all_sources_are_sorted_together():
    nodes = {
        "short": {"kind": "synthetic", "size": 300, "max_length": 4, "weight": 3},
        "long": {"kind": "synthetic", "size": 500, "min_length": 13},
    }
    model = replace(CONFIG.model, kind="encoder_decoder")
    train = load(nodes, model=model, train=replace(TRAIN, batch_size=8)).train
    n_steps = train.n // 8  # then groups begin anew
    visible = [train.batch(step).inputs["source_visible"] for step in range(n_steps)]
    lengths = torch.cat([rows.sum(1) for rows in visible])
    assert sum(rows.numel() for rows in visible) < 1.1 * lengths.sum(), "little padding"
    assert (lengths == 4).sum() == 6 * n_steps
    seen = train.tokens_seen(n_steps)
    assert seen["tokens_short"] == 6 * n_steps * (4 + 5), "source, target and its end"
    assert sum(seen.values()) == pytest.approx(len(lengths) * train.tokens_per_example, rel=1e-3)


def folders(sources):
    return {loader.file.folder for loader in load(sources).train.loaders}


def test_each_source_has_a_cache_of_its_own(nodes):
    rows = [f"line {i}\n" for i in range(600)]
    lines = {"kind": "text", "path": "lines.txt", "split_on": "line"}
    Path("lines.txt").write_text("".join(rows))
    first = folders(nodes | {"d": lines})
    assert folders(nodes | {"d": lines | {"weight": 9}}) == first
    Path("lines.txt").write_text("".join(rows[1:]))
    assert len(first - folders(nodes | {"d": lines})) == 1, "only this one is tokenized again"
    for path in Path("cache").glob("mix-*/*.json"):
        path.write_text("[")
    with pytest.raises(DataError, match="is damaged; remove it and run again to rebuild it"):
        load(nodes | {"d": lines})


def test_no_source_trains_on_what_another_validates_on():
    """A folder, one of its books, of which alone the end would be held out, and one for validation."""
    Path("books").mkdir()
    for book in range(12):
        lines = [f"book {book}, line {line}\n" for line in range(60)]
        Path(f"books/{book}.txt").write_text("".join(lines))
    every = {"kind": "text", "path": "books"}
    for book in range(12):
        one = every | {"path": f"books/{book}.txt"}
        other = every | {"val_path": f"books/{(book + 1) % 12}.txt"}
        data = load({"all": every, "one": one, "other": other}, val_fraction=0.3)
        train, validation = [
            {
                line
                for part in mixed.loaders
                for line in data.tokenizer.decode(part.file.tokens.tolist()).splitlines()
            }
            for mixed in (data.train, data.validation)
        ]
        assert train and validation and not train & validation
    with pytest.raises(DataError, match="data.sources.one: the train split is empty"):
        load({"one": one, "other": every | {"val_path": one["path"]}})


def test_options_bring_their_settings_and_a_tokenizer_reads_all(nodes):
    hub = {"kind": "fineweb_edu", "max_tokens": 5}
    found = source("mix", sources={"d": hub}).members["d"]
    assert (found.id[:13], found.val_fraction) == ("HuggingFaceFW", 0.001)
    assert load(nodes, tokenizer={"kind": "char"}).tokenizer.n_ordinary == 3
    assert hold_out_of_all([source("text", path="a.txt")]).held_out_fraction == 0
