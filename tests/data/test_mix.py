"""A mix of sources: each has its share of the examples and goes through epochs of its own."""

from collections import Counter

import numpy as np
import pytest
import torch

from configs.errors import DataError
from data.loader import SORT_GROUP
from data.shuffle import mixed_ids
from tests.data.corpora import corpus, loader, source

TEXTS = {"a": "a" * 900, "b": "b" * 2500, "c": "c" * 400}
WEIGHTS = {"a": 3, "b": 2, "c": 0.5}


@pytest.fixture
def mixed(tmp_path):
    """mixed(**changes): sources of text, whose tokens tell them apart."""
    nodes = {}
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)
        path = str(tmp_path / f"{name}.txt")
        nodes[name] = {"kind": "text", "path": path, "weight": WEIGHTS[name]}
    return lambda **changes: source("mix", sources=nodes | changes)


def test_every_source_has_its_share_and_its_epochs():
    parts, weights = [range(7), range(7, 47), range(47, 50)], [2, 1, 0.3]
    ids = mixed_ids(np.arange(3000), parts, weights, 0)
    sources = np.searchsorted([7, 47, 50], ids, "right")
    for n in (1, 10, 137, 3000):
        shares = np.bincount(sources[:n], minlength=3) / n
        assert np.abs(shares - np.array(weights) / sum(weights)).max() <= 2 / n
    for number, part in enumerate(parts):
        mine = ids[sources == number]
        for start in range(0, len(mine) - len(part), len(part)):
            assert {*mine[start : start + len(part)]} == {*part}
    assert np.array_equal(mixed_ids(np.arange(900, 950), parts, weights, 0), ids[900:950])
    assert not np.array_equal(mixed_ids(np.arange(3000), parts, weights, 1), ids)


def test_rows_and_tokens_of_each_source(tmp_path, mixed):
    found = mixed()
    made = corpus(tmp_path, found)
    loader_ = loader(made.train, made.tokenizer, batch_size=11, weights=found.weights)
    rows = torch.cat([loader_.batch(step).targets for step in range(20)])
    counts = Counter(map(chr, rows[:, 0].tolist()))
    seen = loader_.tokens_seen(20)
    assert {name: counts[name] * 16 for name in TEXTS} == seen
    assert sum(seen.values()) == rows.numel() and (rows == rows[:, :1]).all()
    assert abs(counts["a"] / 220 - 3 / 5.5) < 0.01

    whole = loader(made.validation, made.tokenizer, weights=found.weights)
    assert sum(batch.count for batch in whole.evaluation()) == made.validation.n_tokens - 3
    alone = corpus(tmp_path, source("text", path=str(tmp_path / "b.txt")))
    alone = loader(alone.validation, alone.tokenizer)
    pairs = zip(whole.evaluation(ids=whole.sources["b"]), alone.evaluation(), strict=True)
    assert all(torch.equal(ours.targets, theirs.targets) for ours, theirs in pairs)


def test_a_mix_of_pairs(tmp_path):
    nodes = {"short": {"kind": "synthetic", "size": 300, "max_length": 4, "weight": 3}}
    nodes["long"] = {"kind": "synthetic", "size": 500, "min_length": 13}
    found = source("mix", sources=nodes)
    made = corpus(tmp_path, found)
    options = {"architecture": "encoder_decoder", "weights": found.weights}
    loader_ = loader(made.train, made.tokenizer, "pairs", batch_size=8, **options)
    batches = [loader_.batch(step) for step in range(SORT_GROUP)]
    lengths = torch.cat([batch.inputs["source_visible"].sum(1) for batch in batches])
    assert (lengths == 4).sum() == 3 * (lengths >= 13).sum() == 3 * 2 * SORT_GROUP
    seen = loader_.tokens_seen(SORT_GROUP)
    assert seen["short"] == 6 * SORT_GROUP * (4 + 5), "source, target and its end"
    assert abs(sum(seen.values()) / SORT_GROUP / 8 - loader_.tokens_per_example) < 0.01


def test_weights_are_not_of_the_cache(tmp_path, mixed):
    other = {"kind": "text", "path": str(tmp_path / "c.txt"), "weight": 9}
    sources = mixed(), mixed(c=other), mixed(c=other | {"split_on": "line"})
    folders = [corpus(tmp_path, found).folder for found in sources]
    assert folders[0] == folders[1] != folders[2]


def test_options_bring_their_settings_and_a_tokenizer_reads_all(tmp_path, mixed):
    hub = mixed(d={"kind": "fineweb_edu", "max_tokens": 5}).members[-1]
    assert (hub.id, hub.streaming, hub.val_fraction) == ("HuggingFaceFW/fineweb-edu", True, 0.001)
    assert corpus(tmp_path, mixed(), tokenizer="char").tokenizer.n_ordinary == 3


def test_a_source_without_an_example(tmp_path, mixed):
    (tmp_path / "d.txt").write_text("dddd")
    found = mixed(d={"kind": "text", "path": str(tmp_path / "d.txt")})
    made = corpus(tmp_path, found)
    with pytest.raises(DataError, match="train has 4 tokens of data.sources.d, too few for an"):
        loader(made.train, made.tokenizer, weights=found.weights)
