"""A mix of sources: each has its share of the examples and goes through epochs of its own."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import DataError
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
    counts = Counter()
    for n, name in enumerate(map(chr, rows[:, 0].tolist()), 1):
        counts[name] += 1
        shares = [counts[name] - n * WEIGHTS[name] / 5.5 for name in LENGTHS]
        assert np.abs(shares).max() <= 2
    assert train.tokens_seen(100) == {name: counts[name] * 16 for name in LENGTHS}

    positions = [[] for _ in LENGTHS]

    def read(number, own):
        positions[number] += own.tolist()
        return own

    for step in range(100):
        train.gather(step * 11, step * 11 + 11, read)
    for name, own in zip(LENGTHS, positions, strict=True):
        assert own == list(range(counts[name])), "each goes through epochs of its own"


def test_each_source_is_read_as_if_alone(mixed):
    """But for the order, in which its name is a seed."""
    loaders = mix(mixed(), "masked", architecture="encoder")
    for name in LENGTHS:
        made = corpus(source("text", path=f"{name}.txt"), specials=("end", "mask"))
        alone = loader(made, "masked", "validation")
        found = loaders.validation.sources[name].evaluation()
        for ours, theirs in zip(found, alone.evaluation(), strict=True):
            assert all(map(torch.equal, tensors(ours).values(), tensors(theirs).values()))
    whole = sum(batch.count for batch in loaders.validation.evaluation())
    parts = loaders.validation.sources.values()
    assert whole == sum(batch.count for part in parts for batch in part.evaluation())


def test_draws_follow_the_sources_and_not_the_mix(mixed):
    """A row is masked alike, whatever it is mixed with."""
    options = {"name": "masked", "architecture": "encoder", "batch_size": 6}
    two = mix(mixed(c={"kind": "text", "path": "c.txt", "weight": 1e-6}), **options).train
    three = mix(mixed(), **options).train
    a = [
        batch.inputs["tokens"][batch.targets.max(1).values == ord("a")]
        for batch in map(two.batch, range(9))
    ]
    b = [
        batch.inputs["tokens"][batch.targets.max(1).values == ord("a")]
        for batch in map(three.batch, range(9))
    ]
    a, b = torch.cat(a), torch.cat(b)
    n = min(len(a), len(b))
    assert n > 20 and torch.equal(a[:n], b[:n])


def test_no_process_gets_one_source(mixed):
    batch = mix(mixed(), batch_size=22).train.batch(3)
    for rank in range(2):
        names = {*map(chr, batch.share(rank, 2).targets[:, 0].tolist())}
        assert names == {"a", "b", "c"}


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


@pytest.mark.parametrize("batch_size", [1, 7, 32, 500])
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


def test_errors_name_the_source(mixed):
    Path("d.txt").write_text("dddd")
    found = mixed(d={"kind": "text", "path": "d.txt"})
    with pytest.raises(
        DataError, match=r"data\.sources\.d: train has 4 tokens, too few for an exa"
    ):
        mix(found)


def documents(n, prefix="document"):
    """Of the same length, so that the examples of a text are its documents."""
    return [f"{prefix} {i:<9}|" for i in range(n)]


def seen_in(loaders, split):
    """{the documents of a split of all sources}"""
    texts = set()
    for each in getattr(loaders, split).sources.values():
        text = loaders.tokenizer.decode_with_specials(each.part.tokens.tolist())
        texts |= {*text.replace("<end>", "").split("|")} - {""}
    return texts


def write_documents(name, texts):
    write_rows(name, [{"text": text} for text in texts])
    return {"kind": "table", "path": name}


OVERLAPS = {
    "a folder and one of its books": (
        lambda: [
            write_documents("many.jsonl", documents(20)),
            write_documents("one.jsonl", ["".join(documents(40, "book"))]),
            write_documents("all.jsonl", [*documents(20), "".join(documents(40, "book"))]),
        ]
    ),
    "many documents, of which some are few": (
        lambda: [
            write_documents("many.jsonl", documents(900)),
            write_documents("few.jsonl", documents(12)),
            write_documents("others.jsonl", [*documents(5), *documents(9, "other")]),
        ]
    ),
    "fractions that differ": (
        lambda: [
            write_documents("many.jsonl", documents(900)) | {"val_fraction": 0.2},
            write_documents("same.jsonl", documents(700)) | {"val_fraction": 0.01},
        ]
    ),
    "a book and files for validation": (
        lambda: [
            write_documents("one.jsonl", ["".join(documents(40, "book"))]),
            write_documents("a.jsonl", [*documents(9), "".join(documents(40, "book"))])
            | {"val_path": write_documents("b.jsonl", documents(5))["path"]},
        ]
    ),
    "files for validation": (
        lambda: [
            write_documents("many.jsonl", documents(300)),
            write_documents("a.jsonl", documents(50, "a"))
            | {"val_path": write_documents("b.jsonl", documents(30))["path"]},
        ]
    ),
}


@pytest.mark.parametrize("make", OVERLAPS.values(), ids=OVERLAPS)
def test_no_source_trains_on_what_another_validates_on(make):
    for tokenizer in ("byte", "char"):
        nodes = {f"s{number}": node for number, node in enumerate(make())}
        loaders = mix(source("mix", sources=nodes), tokenizer=tokenizer)
        train, validation = seen_in(loaders, "train"), seen_in(loaders, "validation")
        assert train and validation and not train & validation


def test_files_for_validation_stay_alone_there():
    nodes = {
        "book": write_documents("one.jsonl", ["".join(documents(40, "book"))]),
        "all": write_documents("a.jsonl", [*documents(9), "".join(documents(40, "book"))])
        | {"val_path": write_documents("b.jsonl", documents(5, "other"))["path"]},
    }
    validation = mix(source("mix", sources=nodes)).validation
    text = validation.tokenizer.decode(validation.sources["all"].part.tokens.tolist())
    assert text.split("|")[:-1] == [each.strip("|") for each in documents(5, "other")]


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
