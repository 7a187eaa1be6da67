"""Batches follow from (seed, step) alone, with every pair once per epoch. (That every sequence is,
too, is in test_mix.py.)"""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from configs.errors import DataError
from configs.schema import IGNORE_INDEX
from data.loader import prefetch
from data.objectives import NextToken
from data.pairs import PairLoader
from tests.data.corpora import SPECIALS, corpus, loader, source, tensors, text_corpus
from tests.parts import refused

TEXT = "".join(chr(ord("a") + i * i % 26) for i in range(1200))


@pytest.fixture
def text():
    return text_corpus(TEXT, val_fraction=0.25)


KINDS = [
    ("next_token", "decoder"),
    ("masked", "encoder"),
    ("span", "encoder_decoder"),
    ("pairs", "decoder"),
    ("pairs", "encoder_decoder"),
]


@pytest.fixture(params=KINDS, ids="-".join)
def batched(request):
    """batched(**options): a loader of each objective"""
    name, architecture = request.param
    specials = [*SPECIALS, *(f"sentinel_{i}" for i in range(4))]
    Path("text.txt").write_text(TEXT)
    is_pairs = name == "pairs"
    found = source("synthetic", size=700) if is_pairs else source("text", path="text.txt")
    made = corpus(found, specials=specials)

    shared = {"architecture": architecture, "context_length": 40}
    return lambda **options: loader(made, name, **shared, **options)


def same(a, b):
    other = tensors(b)
    return all(torch.equal(tensor, other[name]) for name, tensor in tensors(a).items())


def test_a_batch_follows_from_seed_and_step(batched):
    first, again = batched(), batched()
    list(map(again.batch, range(5)))  # earlier batches do not matter
    for step in (0, 3, 1000):
        assert same(first.batch(step), again.batch(step))
    assert not same(first.batch(0), first.batch(1))
    other = batched(seed=1)
    assert not same(first.batch(0), other.batch(0))
    assert all(map(same, first.evaluation(), other.evaluation())), "whatever the seed"


def test_shares_of_a_batch_have_equally_many_rows(batched):
    """Of processes that must run equally many forward passes, however few rows there are."""
    for batch in batched().evaluation(limit=6):
        n_rows = len(batch.targets)
        for size in (1, 2, 3, 4, 7):
            shares = [batch.share(rank, size) for rank in range(size)]
            assert {len(share.targets) for share in shares} == {math.ceil(n_rows / size)}
            assert sum(share.count for share in shares) == batch.count

            for name, tensor in tensors(batch).items():
                joined = torch.cat([tensors(share)[name] for share in shares])
                assert torch.equal(joined[:n_rows], tensor)
                assert name != "targets" or (joined[n_rows:] == IGNORE_INDEX).all()


def test_a_limited_evaluation_repeats_its_sequences(text):
    validation = loader(text, split="validation", batch_size=6)
    some, again, first = [next(validation.evaluation(n)).targets for n in (6, 6, None)]
    assert some.equal(again) and not some.equal(first), "anywhere in the text"


def test_evaluation_ends_with_the_last_token(text):
    part = text.validation
    for n in range(49, 32, -1):
        part.tokens = part.tokens[:n]
        part.n_tokens = n
        found = [batch.targets.flatten() for batch in loader(text, split="validation").evaluation()]
        assert torch.cat(found).tolist() == part.tokens[1:].tolist()


def pairs_of(n, batch_size, seed=0):
    """A loader of n pairs of one row each."""
    lengths = np.random.default_rng(n).lognormal(3.5, 0.7, n).astype(int).clip(2, 400)
    made = PairLoader.__new__(PairLoader)
    vars(made).update(n=n, batch_size=batch_size, seed=seed, widths=lengths[:, None])
    made.objective = SimpleNamespace(sort_group=128)
    return made


SIZES = [(300, 16), (282, 7), (300, 300), (301, 300), (5, 8), (1, 3), (4097, 32), (19_011, 64)]


@pytest.mark.parametrize("n, batch_size", SIZES)
def test_a_run_of_any_length_sees_all_pairs_equally_often(n, batch_size):
    """Each once in an epoch; whenever a run ends, none has been seen twice more than another."""
    train = pairs_of(n, batch_size)
    seen = np.zeros(n, int)
    for step in range(math.ceil(3 * n / batch_size)):
        np.add.at(seen, train.batch_ids(step), 1)
        assert seen.max() == math.ceil((step + 1) * batch_size / n)
        assert seen.min() == (step + 1) * batch_size // n, "whole epochs"


def test_batches_of_pairs_have_little_padding_and_a_random_order():
    train = pairs_of(19_011, 16)
    epoch = [train.batch_ids(step) for step in range(19_011 // 16)]
    widths = [train.widths[ids] for ids in epoch]
    padded = sum(len(lengths) * lengths.max() for lengths in widths)
    assert padded < 1.05 * sum(lengths.sum() for lengths in widths)
    longest = np.array([lengths.max() for lengths in widths[:128]])
    assert abs(np.corrcoef(longest, np.arange(128))[0, 1]) < 0.3
    assert not np.array_equal(epoch[0], pairs_of(19_011, 16, seed=1).batch_ids(0))
    train.read = lambda ids: train.widths[ids].max()
    assert train.widest() == train.widths.max()


class Shorter(NextToken):
    """A length curriculum."""

    def batch(self, rows, draw, tokenizer, step):
        length = self.seq_len if step is None else 1 + step % self.seq_len
        return super().batch(rows[:, : length + 1], draw, tokenizer)


def test_the_step_is_known_to_an_objective_and_tokens_are_those_of_the_batch(text):
    train = loader(text)
    train.objective = Shorter(16)
    for step in (0, 3, 40):
        batch = train.batch(step)
        assert batch.inputs["tokens"].shape == (4, 1 + step % 16)
        assert batch.n_tokens == 4 * (1 + step % 16)
        assert batch.share(1, 3).n_tokens == batch.n_tokens, "those of all processes"
    assert next(train.evaluation()).inputs["tokens"].shape == (4, 16)


def test_padding_is_not_counted_as_tokens(batched):
    train = batched()
    tokens = [train.batch(step).n_tokens for step in range(math.ceil(train.n / 4))]
    assert sum(tokens) / len(tokens) / 4 == pytest.approx(train.tokens_per_example, rel=0.01)


def test_pairs_that_are_too_long(capsys):
    made = corpus(source("synthetic", size=700, val_fraction=0.1))
    load = partial(loader, made, "pairs", architecture="encoder_decoder", context_length=10)
    dropped = load(too_long="drop")
    warning = capsys.readouterr().err
    assert "too long for a context of 10; objective.too_long is drop\n" in warning
    cut = load(too_long="truncate")
    assert cut.n == 618 and f" {cut.n - dropped.n} of " in warning
    assert cut.lengths.max() == 10 >= dropped.lengths.max()
    for batch in cut.evaluation():
        has_end = (batch.targets == cut.tokenizer.specials["end"]).any(1)
        assert has_end.equal(batch.inputs["source_visible"].sum(1) < 10), "unless it is cut"
    with refused("too long for a context of 10; choose objective=pairs obj", DataError):
        load(too_long="error")
    with refused("618 of 618 pairs of train are too long for a context of", DataError):
        load(context_length=3)


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
