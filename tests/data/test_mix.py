"""A mix of sources: each has its share of the examples and goes through epochs of its own."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.compose import compose_node, to_config
from configs.errors import DataError
from data.corpus import load_data
from tests.data.corpora import corpus, loader, source

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
    train = load(nodes).train
    ids = train.ids(np.arange(3000))
    numbers = np.searchsorted(train.firsts, ids, "right") - 1
    for n in (1, 10, 137, 3000):
        counts = np.bincount(numbers[:n], minlength=3)
        expected = n * np.divide([*WEIGHTS.values()], sum(WEIGHTS.values()))
        assert np.abs(counts - expected).max() <= 2
    for number, part in enumerate(train.loaders):
        mine = ids[numbers == number] - train.firsts[number]
        for start in range(0, len(mine) - part.n, part.n):
            assert {*mine[start : start + part.n]} == {*range(part.n)}
    assert np.array_equal(train.ids(np.arange(900, 950)), ids[900:950])
    assert not np.array_equal(load(nodes, seed=1).train.ids(np.arange(3000)), ids)


def test_sources_of_one_text_have_orders_of_their_own(nodes):
    train = load({"one": nodes["a"], "other": nodes["a"]}).train
    one, other = [part.ids(np.arange(part.n)) for part in train.loaders]
    assert sorted(one) == sorted(other) and not np.array_equal(one, other)


def test_a_curriculum_over_the_sources(nodes):
    """The shares of a mix of one's own may follow the step: here all of a, then all of b."""
    train = load({name: nodes[name] for name in "ab"}).train
    train.mix.drawn = lambda positions: (np.minimum(positions, 8), np.maximum(positions - 8, 0))
    ids = train.ids(np.arange(16))
    assert (ids[:8] < train.firsts[1]).all() and (ids[8:] >= train.firsts[1]).all()
    train.mix.drawn = lambda positions: (positions // 2, positions // 2)
    with pytest.raises(ValueError, match="must grow by one, in one source, at each position"):
        train.ids(np.arange(16))


def test_rows_and_tokens_of_each_source(nodes):
    data = load(nodes)
    train = data.train
    rows = torch.cat([train.batch(step).targets for step in range(20)])
    assert (rows == rows[:, :1]).all()
    names = [*map(chr, rows[:, 0])]
    counts = Counter(names)
    assert train.tokens_seen(20) == {f"tokens_{name}": counts[name] * 16 for name in LENGTHS}
    assert abs(counts["a"] / 220 - 3 / 5.5) < 0.01
    for start in range(0, 220, 11):  # every process has rows of several sources
        assert len({*names[start : start + 5]}) > 1 < len({*names[start + 5 : start + 11]})


def test_an_evaluation_is_that_of_each_source(nodes):
    whole = load(nodes).validation
    batches = [*whole.evaluation()]
    assert sum(batch.count for batch in batches) == whole.n_tokens - 3
    alone = loader(corpus(source("text", path="b.txt")), split="validation")
    ours = torch.cat([batch.targets.flatten() for batch in batches if batch.source == "b"])
    assert ours.equal(torch.cat([batch.targets.flatten() for batch in alone.evaluation()]))
    some = Counter()
    for batch in whole.evaluation(2):
        some[batch.source] += len(batch.targets)
    assert some == {"a": 1, "b": 2, "c": 2}, (
        "by size, and at least one; of c it is all, with its rest"
    )


def test_masks_of_a_row_do_not_depend_on_other_rows(nodes):
    """And each row has its source's tokens: the rows are joined before they are masked."""
    objective = {"kind": "masked", "mask_prob": 0.5}
    model = replace(CONFIG.model, kind="encoder")
    train = load(nodes, objective=objective, model=model).train
    batch = train.batch(3)
    train.batch_size = 1
    for number, targets in enumerate(batch.targets):
        assert targets.equal(train.batch(33 + number).targets[0])
        assert len({*targets.tolist()}) == 2, "one letter, and what is not asked"


def test_a_mix_of_pairs_is_sorted_as_one():
    """By length, which saves padding."""
    nodes = {
        "short": {"kind": "synthetic", "size": 300, "max_length": 4, "weight": 3},
        "long": {"kind": "synthetic", "size": 500, "min_length": 13},
    }
    model = replace(CONFIG.model, kind="encoder_decoder")
    train = load(nodes, model=model, train=replace(TRAIN, batch_size=8)).train
    lengths = []
    width = 0
    n_steps = train.n // 8  # then groups begin anew
    for step in range(n_steps):
        visible = train.batch(step).inputs["source_visible"]
        lengths += visible.sum(1).tolist()
        width += visible.numel()
    assert width < 1.1 * sum(lengths)
    n_short = lengths.count(4)
    assert n_short == 6 * n_steps
    assert sum(length >= 13 for length in lengths) == 2 * n_steps
    seen = train.tokens_seen(n_steps)
    assert seen["tokens_short"] == n_short * (4 + 5), "source, target and its end"
    assert abs(sum(seen.values()) / len(lengths) - train.tokens_per_example) < 0.01
    widest = train.widest().inputs["source"].shape[1]
    assert widest == max(lengths)


def folders(data):
    return [loader.part.folder for loader in data.train.loaders]


def test_each_source_has_a_cache_of_its_own(nodes):
    rows = [f"line {i}" for i in range(600)]
    Path("lines.txt").write_text("\n".join(rows))
    lines = {"kind": "text", "path": "lines.txt", "split_on": "line"}
    first = load(nodes | {"d": lines})
    assert folders(load(nodes | {"d": lines | {"weight": 9}})) == folders(first), "not the weights"
    Path("lines.txt").write_text("\n".join(rows[1:]))
    second = load(nodes | {"d": lines})
    same = [old == new for old, new in zip(folders(first), folders(second), strict=True)]
    assert same == [True, True, True, False], "only a source that has changed is tokenized again"
    assert first.content_hash != second.content_hash
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
    for book in range(12):
        every = {"kind": "text", "path": "books"}
        one = {"kind": "text", "path": f"books/{book}.txt", "weight": 2}
        file = every | {"val_path": f"books/{(book + 1) % 12}.txt"}
        data = load({"all": every, "one": one, "file": file}, val_fraction=0.3)
        train, validation = [
            {*data.tokenizer.decode(part.part.tokens.tolist()).splitlines()}
            for part in (data.train, data.validation)
        ]
        assert train and validation and not train & validation
        assert f"book {(book + 1) % 12}, line 0" in validation


def test_options_bring_their_settings_and_a_tokenizer_reads_all(nodes):
    hub = {"kind": "fineweb_edu", "max_tokens": 5}
    found = source("mix", sources={"hub": hub}).members["hub"]
    assert (found.id, found.streaming, found.val_fraction) == (
        "HuggingFaceFW/fineweb-edu",
        True,
        0.001,
    )
    assert load(nodes, tokenizer={"kind": "char"}).tokenizer.n_ordinary == 3


def test_a_source_without_an_example(nodes):
    Path("d.txt").write_text("dddd")
    with pytest.raises(DataError, match="data.sources.d: train has 4 tokens, too few for an exam"):
        load(nodes | {"d": {"kind": "text", "path": "d.txt"}})
