"""Batches follow from (seed, step) alone, with every sequence or pair once per epoch."""

from collections import Counter
from copy import copy

import pytest
import torch

from configs.errors import DataError
from data.loader import SORT_GROUP, prefetch
from data.objectives import IGNORE_INDEX
from tests.data.corpora import corpus, loader, source, tensors, text_corpus

TEXT = "".join(chr(ord("a") + i * i % 26) for i in range(1200))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_corpus(tmp_path_factory.mktemp("text"), TEXT, val_fraction=0.25)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("pairs"), source("synthetic", size=700), val_fraction=0.1)


def same(a, b):
    pairs = zip(tensors(a).values(), tensors(b).values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


KINDS = [
    ("next_token", "decoder", "text"),
    ("masked", "encoder", "text"),
    ("span", "encoder_decoder", "text"),
    ("pairs", "decoder", "pairs"),
    ("pairs", "encoder_decoder", "pairs"),
]
SENTINELS = ("end", "pad", "start", "mask", *(f"sentinel_{i}" for i in range(4)))


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(kind[:2]))
def batched(request, tmp_path_factory):
    """A function of a seed: the loader of each objective."""
    name, architecture, kind = request.param
    folder = tmp_path_factory.mktemp(name)
    if kind == "text":
        made = text_corpus(folder, TEXT, specials=SENTINELS)
    else:
        made = corpus(folder, source("synthetic", size=700))

    def make(seed=0, part="train"):
        options = {"architecture": architecture, "context_length": 40, "seed": seed}
        return loader(getattr(made, part), made.tokenizer, name, **options)

    return make


def test_a_batch_follows_from_seed_and_step(batched):
    first, again = batched(), batched()
    list(map(again.batch, range(5)))  # earlier batches do not matter
    for step in (0, 3, 1000):
        assert same(first.batch(step), again.batch(step))
    assert not same(first.batch(0), first.batch(1))
    assert not same(first.batch(0), batched(seed=1).batch(0))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_shares_of_a_batch_have_equally_many_rows(batched, size):
    """Of processes that must run equally many forward passes, however few rows there are."""
    for batch in batched().evaluation(limit=6):
        shares = [batch.share(rank, size) for rank in range(size)]
        n_rows, width = batch.targets.shape
        assert {share.targets.shape for share in shares} == {(-(-n_rows // size), width)}
        assert sum(share.count for share in shares) == batch.count

        for name, tensor in tensors(batch).items():
            parts = [tensors(share)[name] for share in shares]
            assert torch.equal(torch.cat(parts)[:n_rows], tensor)
        fillers = torch.cat([share.targets for share in shares])[n_rows:]
        assert (fillers == IGNORE_INDEX).all()


def test_evaluation_is_always_the_same(batched):
    first, other = (list(batched(seed, "validation").evaluation()) for seed in (0, 1))
    assert len(first) == len(other) and all(map(same, first, other))


def test_every_sequence_once_per_epoch(text):
    loader_ = loader(text.train, text.tokenizer, batch_size=8)
    steps = range(loader_.n)  # 8 epochs
    rows = torch.cat([loader_.batch(step).inputs["tokens"] for step in steps])
    every = text.train.tokens[: loader_.n * 16].reshape(-1, 16).tolist()
    for epoch in rows.split(loader_.n):
        assert sorted(epoch.tolist()) == sorted(every)


def test_a_limited_evaluation_repeats_its_sequences(text):
    loader_ = loader(text.validation, text.tokenizer, batch_size=4)

    def rows(limit=None):
        batches = loader_.evaluation(limit)
        return [row for batch in batches for row in batch.inputs["tokens"].tolist()]

    assert rows(6) == rows(6) != rows()[:6], "anywhere in the text"
    assert len(rows(6)) == 6


def test_evaluation_ends_with_the_last_token(text):
    part = copy(text.validation)
    for n in range(33, 50):
        part.ends_of_sources, part.tokens = [n], text.validation.tokens[:n]
        found = [b.targets.flatten() for b in loader(part, text.tokenizer).evaluation()]
        assert torch.cat(found).tolist() == part.tokens[1:].tolist()


def test_too_little_text(text):
    with pytest.raises(DataError, match="train has 901 tokens, too few for an example; give"):
        loader(text.train, text.tokenizer, context_length=1000)


def pair_loader(pairs, **options):
    options = {"architecture": "encoder_decoder", "context_length": 40, "batch_size": 8} | options
    return loader(pairs.train, pairs.tokenizer, "pairs", **options)


def test_every_pair_once_per_epoch(pairs):
    loader_ = pair_loader(pairs)
    steps = range(3 * SORT_GROUP)
    rows = [row for step in steps for row in loader_.batch(step).inputs["source"].tolist()]
    seen = Counter(map(pairs.tokenizer.decode, rows))
    whole, rest = divmod(len(rows), loader_.n)
    assert Counter(seen.values()) == {whole: loader_.n - rest, whole + 1: rest}


def test_pairs_that_are_too_long(pairs):
    dropped, cut = (
        pair_loader(pairs, context_length=10, too_long=action) for action in ("drop", "truncate")
    )
    assert dropped.n + dropped.n_too_long == cut.n == pairs.train.n_items
    assert cut.lengths.max() == 10 >= dropped.lengths.max()
    for batch in cut.evaluation():
        has_end = (batch.targets == pairs.tokenizer.specials["end"]).any(1)
        assert has_end.equal(batch.inputs["source_visible"].sum(1) < 10), "unless it is cut"
    with pytest.raises(DataError, match="too long for a context of 10; choose objective=pairs obj"):
        pair_loader(pairs, context_length=10, too_long="error")
    with pytest.raises(DataError, match="618 of 618 pairs of train are too long for a context of"):
        pair_loader(pairs, context_length=3)


def test_prefetch_is_one_ahead_and_passes_errors_on():
    steps = []

    def batch(step):
        steps.append(step)
        return step // (2 - step) + step

    assert list(prefetch(batch, [])) == []
    running = prefetch(batch, range(9))
    assert [next(running), next(running)] == [0, 2]
    with pytest.raises(ZeroDivisionError):
        next(running)
    assert max(steps) <= 3
