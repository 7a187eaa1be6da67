"""A mix of sources: each has its share of the examples and goes through epochs of its own."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import DataError
from data.shuffle import mixed_ids
from tests.data.corpora import corpus, drawn_by, loader, source

LENGTHS = {"a": 900, "b": 2500, "c": 400}
WEIGHTS = {"a": 3, "b": 2, "c": 0.5}


@pytest.fixture
def mixed():
    """mixed(**changes): sources of text, whose tokens tell them apart."""
    nodes = {}
    for name, length in LENGTHS.items():
        path = Path(f"{name}.txt")
        path.write_text(name * length)
        nodes[name] = {"kind": "text", "path": str(path), "weight": WEIGHTS[name]}
    return lambda **changes: source("mix", sources=nodes | changes)


def test_every_source_has_its_share_and_its_epochs():
    parts = [range(7), range(7, 47), range(47, 50)]
    weights = [2, 1, 0.3]
    drawn = drawn_by(dict(zip("abc", weights, strict=True)))
    ids = mixed_ids(np.arange(3000), parts, drawn, 0)
    sources = np.searchsorted([7, 47, 50], ids, "right")
    for n in (1, 10, 137, 3000):
        counts = np.bincount(sources[:n], minlength=3)
        expected = n * np.divide(weights, sum(weights))
        assert np.abs(counts - expected).max() <= 2
    for number, part in enumerate(parts):
        mine = ids[sources == number]
        for start in range(0, len(mine) - len(part), len(part)):
            assert {*mine[start : start + len(part)]} == {*part}
    again = mixed_ids(np.arange(900, 950), parts, drawn, 0)
    assert np.array_equal(again, ids[900:950])
    assert not np.array_equal(mixed_ids(np.arange(3000), parts, drawn, 1), ids)


def test_a_curriculum_over_the_sources():
    """The shares of a mix of one's own may follow the step: here all of a, then all of b."""

    def drawn(positions):
        yield np.minimum(positions, 8)
        yield np.maximum(positions - 8, 0)

    ids = mixed_ids(np.arange(16), [range(5), range(5, 9)], drawn, 0)
    assert (ids[:8] < 5).all() and {*ids[8:12]} == {*range(5, 9)}


def test_rows_and_tokens_of_each_source(mixed):
    found = mixed()
    made = corpus(found)
    train = loader(made, batch_size=11, weights=found.weights)
    rows = torch.cat([train.batch(step).targets for step in range(20)])
    assert (rows == rows[:, :1]).all()
    counts = Counter(map(chr, rows[:, 0].tolist()))
    assert train.tokens_seen(20) == {name: counts[name] * 16 for name in LENGTHS}
    assert abs(counts["a"] / 220 - 3 / 5.5) < 0.01

    whole = loader(made, split="validation", weights=found.weights)
    assert sum(batch.count for batch in whole.evaluation()) == made.validation.n_tokens - 3
    made = corpus(source("text", path="b.txt"))
    alone = loader(made, split="validation")
    batches = zip(whole.evaluation(ids=whole.sources["b"]), alone.evaluation(), strict=True)
    assert all(torch.equal(ours.targets, theirs.targets) for ours, theirs in batches)


def test_a_mix_of_pairs():
    nodes = {
        "short": {"kind": "synthetic", "size": 300, "max_length": 4, "weight": 3},
        "long": {"kind": "synthetic", "size": 500, "min_length": 13},
    }
    found = source("mix", sources=nodes)
    made = corpus(found)
    options = {"architecture": "encoder_decoder", "weights": found.weights}
    train = loader(made, "pairs", batch_size=8, **options)
    lengths = []
    n_steps = math.ceil(train.n / 8)  # then groups begin anew
    for step in range(n_steps):
        lengths += train.batch(step).inputs["source_visible"].sum(1).tolist()
    n_short = lengths.count(4)
    assert n_short == 6 * n_steps
    assert sum(length >= 13 for length in lengths) == 2 * n_steps
    seen = train.tokens_seen(n_steps)
    assert seen["short"] == n_short * (4 + 5), "source, target and its end"
    assert abs(sum(seen.values()) / len(lengths) - train.tokens_per_example) < 0.01


def test_weights_are_not_of_the_cache(mixed):
    other = {"kind": "text", "path": "c.txt", "weight": 9}
    sources = mixed(), mixed(c=other), mixed(c=other | {"split_on": "line"})
    first, second, third = [corpus(found).folder for found in sources]
    assert first == second != third


def test_no_source_trains_on_what_another_validates_on():
    """A folder, and one of its books, of which alone the end would be held out."""
    Path("books").mkdir()
    for book in range(12):
        lines = [f"book {book}, line {line}\n" for line in range(60)]
        Path(f"books/{book}.txt").write_text("".join(lines))
    for book in range(12):
        one = {"kind": "text", "path": f"books/{book}.txt", "weight": 2}
        nodes = {"all": {"kind": "text", "path": "books"}, "one": one}
        made = corpus(source("mix", sources=nodes, val_fraction=0.3))
        train, validation = [
            {*made.tokenizer.decode(part.tokens.tolist()).splitlines()}
            for part in (made.train, made.validation)
        ]
        assert len(train & validation) == 0 < len(validation) < len(train)


def test_options_bring_their_settings_and_a_tokenizer_reads_all(mixed):
    hub = mixed(d={"kind": "fineweb_edu", "max_tokens": 5}).members[-1]
    assert (hub.id, hub.streaming, hub.val_fraction) == ("HuggingFaceFW/fineweb-edu", True, 0.001)
    assert corpus(mixed(), "char").tokenizer.n_ordinary == 3


def test_a_source_without_an_example(mixed):
    Path("d.txt").write_text("dddd")
    found = mixed(d={"kind": "text", "path": "d.txt"})
    made = corpus(found)
    with pytest.raises(DataError, match="train has 4 tokens of data.sources.d, too few for an"):
        loader(made, weights=found.weights)
