"""A mix of sources: each has its share of the examples and goes through epochs of its own."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import DataError
from configs.registry import SettingError
from data.mix import Mix
from tests.data.corpora import corpus, loader, mix, source, tensors, write_rows

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


def rows_of(train, steps):
    return torch.cat([train.batch(step).targets for step in steps])


def test_every_source_has_its_share_and_its_epochs(mixed):
    train = mix(mixed(), batch_size=11).train
    rows = rows_of(train, range(100))
    assert (rows == rows[:, :1]).all()
    for half in rows[66:88].split(11):
        assert len(half.unique()) == 3, "no process gets one source"
    counts = Counter()
    for n, name in enumerate(map(chr, rows[:, 0].tolist()), 1):
        counts[name] += 1
        shares = [counts[name] - n * WEIGHTS[name] / 5.5 for name in LENGTHS]
        assert np.abs(shares).max() <= 2
    assert train.tokens_seen(100) == {name: counts[name] * 16 for name in LENGTHS}

    positions = [[] for _ in LENGTHS]
    for step in range(100):
        train.gather(step * 11, step * 11 + 11, lambda n, own: positions[n].extend(own) or own)
    assert positions == [[*range(counts[name])] for name in LENGTHS], "own epochs"


def test_each_source_is_read_as_if_alone(mixed):
    """But for the order, in which its name is a seed."""
    validation = mix(mixed(), "masked", architecture="encoder").validation
    count = 0
    for name in LENGTHS:
        made = corpus(source("text", path=f"{name}.txt"), specials=("end", "mask"))
        alone = loader(made, "masked", "validation")
        for ours, theirs in zip(
            validation.sources[name].evaluation(), alone.evaluation(), strict=True
        ):
            assert all(map(torch.equal, tensors(ours).values(), tensors(theirs).values()))
            count += ours.count
    assert count == sum(batch.count for batch in validation.evaluation())


def test_draws_follow_the_sources_and_not_the_mix(mixed):
    """A row is masked alike, whatever it is mixed with."""
    options = {"name": "masked", "architecture": "encoder", "batch_size": 6}
    rows = []
    for changes in ({}, {"c": {"kind": "text", "path": "c.txt", "weight": 1e-6}}):
        batches = map(mix(mixed(**changes), **options).train.batch, range(9))
        found = [each.inputs["tokens"][each.targets.max(1).values == ord("a")] for each in batches]
        rows.append(torch.cat(found))
    n = min(map(len, rows))
    assert n > 20 and torch.equal(rows[0][:n], rows[1][:n])


@pytest.fixture
def pairs():
    nodes = {
        "short": {"kind": "synthetic", "size": 300, "max_length": 4, "weight": 3},
        "long": {"kind": "synthetic", "size": 500, "min_length": 13},
    }
    found = source("mix", sources=nodes)
    return lambda **options: mix(found, "pairs", architecture="encoder_decoder", **options).train


def test_pairs_of_all_sources_are_sorted_together(pairs):
    train = pairs(batch_size=8)
    n_steps = train.n // 8
    widths = []
    lengths = []
    for step in range(n_steps):
        visible = train.batch(step).inputs["source_visible"]
        widths.append(visible.numel())
        lengths += visible.sum(1).tolist()
    n_short = lengths.count(4)
    assert n_short == 6 * n_steps
    assert sum(length >= 13 for length in lengths) == 2 * n_steps
    assert sum(widths) < 1.05 * sum(lengths), "little padding"
    seen = train.tokens_seen(n_steps)
    assert seen["short"] == n_short * (4 + 5), "source, target and its end"
    assert abs(sum(seen.values()) / len(lengths) - train.tokens_per_example) < 0.01


@pytest.mark.parametrize("batch_size", [1, 32, 500])
def test_after_an_epoch_of_a_mix_every_source_is_in_its_own(pairs, batch_size):
    train = pairs(batch_size=batch_size)
    ends = [0, *np.cumsum([each.n for each in train.loaders])]
    seen = np.zeros(train.n, int)
    step = 0
    for epoch in range(1, 4):
        while step * batch_size < epoch * train.n:
            np.add.at(seen, train.sampler.batch(step), 1)
            step += 1
        for first, end in pairwise(ends):
            assert np.ptp(seen[first:end]) <= 1


def test_weights_are_not_of_the_cache(mixed):
    other = {"kind": "text", "path": "c.txt", "weight": 9}
    sources = mixed(), mixed(c=other), mixed(c=other | {"split_on": "line"})
    first, second, third = map(mix, sources)
    assert first.folder == second.folder != third.folder
    folders = {name: each.part.folder for name, each in first.train.sources.items()}
    for name, each in third.train.sources.items():
        assert (each.part.folder == folders[name]) == (name != "c")


def test_options_bring_their_settings_and_a_tokenizer_reads_all(mixed):
    hub = mixed(d={"kind": "fineweb_edu", "max_tokens": 5}).members["d"]
    assert (hub.id, hub.streaming, hub.val_fraction) == ("HuggingFaceFW/fineweb-edu", True, 0.001)
    assert mix(mixed(), tokenizer="char").tokenizer.n_ordinary == 3


def test_errors_name_the_source_and_its_settings(mixed):
    Path("d.txt").write_text("dddd")
    node = {"kind": "text", "path": "d.txt"}
    with pytest.raises(DataError, match=r"data.sources.d: train has 4 tokens, too few for an exa"):
        mix(mixed(d=node))
    with pytest.raises(SettingError, match=r"setting data.sources.d \(text\): wieght;") as raised:
        mixed(d=node | {"wieght": 2})
    assert "weight" in raised.value.known


def documents(n, name="document"):
    """Of the same length, so that the examples of a text are its documents."""
    return [f"{name} {i:<9}|" for i in range(n)]


BOOK = "".join(documents(40, "book"))
OTHERS = documents(9, "other")
OVERLAPS = {  # (documents, settings) of each source
    "a folder and one of its books": [(documents(20), {}), ([BOOK], {}), ([*OTHERS, BOOK], {})],
    "few of many": [(documents(900), {}), (documents(12), {}), ([*documents(5), *OTHERS], {})],
    "fractions": [
        (documents(900), {"val_fraction": 0.2}),
        (documents(700), {"val_fraction": 0.01}),
    ],
    "files and a book": [([BOOK], {}), ([*documents(9), BOOK], {"val_path": documents(5)})],
    "files and many": [(documents(300), {}), (documents(50, "a"), {"val_path": documents(30)})],
}


def seen_in(loader, tokenizer):
    text = tokenizer.decode_with_specials(loader.part.tokens.tolist())
    return {*text.replace("<end>", "").split("|")} - {""}


@pytest.mark.parametrize("case", OVERLAPS.values(), ids=OVERLAPS)
def test_no_source_trains_on_what_another_validates_on(case):
    nodes = {}
    for name, (texts, settings) in zip("abc", case, strict=False):
        paths = {"path": texts} | settings
        for key in paths.keys() - {"val_fraction"}:
            write_rows(f"{name}-{key}.jsonl", [{"text": text} for text in paths[key]])
            paths[key] = f"{name}-{key}.jsonl"
        nodes[name] = {"kind": "table"} | paths
    loaders = mix(source("mix", sources=nodes))
    train, validation = (
        [seen_in(each, loaders.tokenizer) for each in split.sources.values()]
        for split in (loaders.train, loaders.validation)
    )
    assert set().union(*train) and set().union(*validation)
    assert not set().union(*train) & set().union(*validation)
    if "val_path" in case[1][1]:
        assert validation[1] == {text.strip("|") for text in case[1][1]["val_path"]}, "alone"


class Later(Mix):
    """One source after the other: the second begins with example 40, the third never."""

    def drawn(self, positions):
        yield np.minimum(positions, 40)
        yield np.maximum(positions - 40, 0)
        yield np.zeros_like(positions)


def test_shares_that_change_are_a_subclass(mixed):
    train = mix(Later("cache", 0.05, mixed().sources), batch_size=16).train
    names = [chr(i) for i in rows_of(train, range(5))[:, 0]]
    assert names == ["a"] * 40 + ["b"] * 40
    assert train.tokens_seen(3) == {"a": 40 * 16, "b": 8 * 16, "c": 0}
