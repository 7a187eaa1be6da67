"""What each objective predicts, and that no token is lost."""

import numpy as np
import pytest
import torch

from configs.registry import build
from data.objectives import IGNORE_INDEX, OBJECTIVES
from data.shuffle import hash_seed, random_words
from data.tokenizers.tokenizer import Tokenizer, assign_ids
from tests.data.corpora import objective, tensors
from tests.parts import ARCHITECTURES, kind_options, kinds

ROWS = 64


SPECIALS = ("end", "pad", "start", "mask", *(f"sentinel_{i}" for i in range(60)))


class FakeTokenizer:
    """What an objective needs of a tokenizer."""

    n_ordinary, specials = 1000, assign_ids(SPECIALS, 1000)
    start, pad = specials["start"], specials["pad"]


def draw(purpose, width, rows=ROWS):
    return random_words(hash_seed("test", purpose), np.arange(rows), width)


def rows(length, n=ROWS):
    return np.arange(n * length, dtype=np.int64).reshape(n, length) % FakeTokenizer.n_ordinary


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", kinds("objective", OBJECTIVES))
def test_properties_of_every_objective(kind, architecture):
    """Rows are independent, ids are in the vocabulary, and no position of a decoder sees its target."""
    if architecture not in OBJECTIVES[kind].architectures:
        return
    shared = {"context_length": 32, "architecture": architecture}
    made = build("objective", OBJECTIVES, kind_options("objective", kind), shared)
    specials = assign_ids(made.specials, FakeTokenizer.n_ordinary)
    tokenizer = Tokenizer(FakeTokenizer.n_ordinary, specials)

    def batch(some):
        if made.input_kind == "pairs":
            return made.batch(list(rows(9)[some]), list(rows(16)[some, 9:]), tokenizer)
        if made.input_kind == "chat":
            masks = np.arange(16) % 5 > np.arange(ROWS)[:, None] % 3
            return made.batch(list(rows(16)[some]), list(masks[some]), tokenizer)
        given = rows(made.seq_len + made.lookahead)
        return made.batch(given[some], lambda *names: draw(*names)[some], tokenizer)

    whole = batch(slice(None))
    for some in (slice(3, 4), slice(7, 9)):
        part = tensors(batch(some))
        for name, tensor in tensors(whole).items():
            assert torch.equal(part[name], tensor[some])
    assert whole.count == (whole.targets != IGNORE_INDEX).sum() > 0
    for x in tensors(whole).values():
        assert x.shape[1] <= 32 and x[x != IGNORE_INDEX].max() < 1000 + len(specials)
    if architecture != "encoder":
        for seen, row in zip(whole.inputs["tokens"].tolist(), whole.targets.tolist(), strict=True):
            texts = [(t, i) for t, i in enumerate(row) if 0 <= i < FakeTokenizer.n_ordinary]
            assert not [i for t, i in texts if i in seen[: t + 1]]


WIDTHS = [(128, 0.15), (100, 0.15), (7, 0.15), (1, 0.15), (64, 0.5)]


def masked(width, n=ROWS, **options):
    """Rows of text; of the batch that asks for it, what is asked, and the tokens."""
    given = rows(width, n)
    made = objective("masked", context_length=width, **options)
    batch = made.batch(given, lambda purpose, width: draw(purpose, width, n), FakeTokenizer)
    asked = batch.targets.numpy() != IGNORE_INDEX
    assert np.array_equal(batch.targets.numpy()[asked], given[asked])
    return given, asked, batch.inputs["tokens"].numpy()


@pytest.mark.parametrize(("width", "mask_prob"), WIDTHS)
def test_masked_predicts_an_exact_fraction(width, mask_prob):
    given, asked, tokens = masked(width, mask_prob=mask_prob)
    assert (asked.sum(1) == max(1, round(mask_prob * width))).all()
    assert np.array_equal(tokens[~asked], given[~asked])


def test_masked_replaces_by_mask_by_random_token_or_not_at_all():
    given, asked, tokens = masked(512, 200)
    is_mask = tokens == FakeTokenizer.specials["mask"]
    assert is_mask[asked].mean() == pytest.approx(0.8, abs=0.01)
    assert (tokens == given)[asked].mean() == pytest.approx(0.1, abs=0.01)
    other = tokens[asked & (tokens != given) & ~is_mask]
    assert other.max() < FakeTokenizer.n_ordinary, "never a special token"
    assert len(np.unique(other)) > 700
    counts = asked.sum(0)  # every position as likely as the next
    assert counts.min() > 10 and counts.max() < 60


SPANS = [(128, 0.15, 3.0), (512, 0.15, 3.0), (32, 0.5, 4.0), (8, 0.15, 3.0)]


@pytest.mark.parametrize(("context_length", "noise_density", "mean"), SPANS)
def test_span_loses_no_token(context_length, noise_density, mean):
    """Replacing each sentinel by its span restores the text."""
    options = {"noise_density": noise_density, "mean_span_length": mean}
    span = objective("span", context_length, "encoder_decoder", **options)
    given = rows(span.seq_len)
    batch = span.batch(given, draw, FakeTokenizer)
    source, tokens, targets = batch.inputs["source"], batch.inputs["tokens"], batch.targets
    cut, n = span.sizes(span.seq_len)
    assert tokens.shape[1] == targets.shape[1] == 1 + cut + n
    assert max(source.shape[1], tokens.shape[1]) <= context_length
    assert span.longest(span.seq_len + 1) > context_length, "as long as the context allows"
    start, end = FakeTokenizer.specials["start"], FakeTokenizer.specials["end"]
    assert (tokens[:, 0] == start).all() and (targets[:, -1] == end).all()
    assert tokens[:, 1:].equal(targets[:, :-1])

    answers = targets[:, :-1].tolist()
    for row, kept, answer in zip(given.tolist(), source.tolist(), answers, strict=True):
        spans = {}
        for i in answer:
            spans.setdefault(i, []) if i >= 1004 else spans[max(spans)].append(i)
        assert row == [i for token in kept for i in spans.get(token, [token])]
        assert list(spans) == [1004 + i for i in range(n)] and all(spans.values())


def test_span_has_the_sizes_of_t5():
    span = objective("span", 512, "encoder_decoder")
    assert span.seq_len == 569 and span.longest(569) == 512 and span.sizes(569) == (85, 28)


def pair_batch(architecture):
    sources, targets = [[1, 2, 3], [4]], [[5, 1000], [6, 7, 1000]]
    pairs = objective("pairs", 8, architecture)
    batch = pairs.batch([*map(np.array, sources)], [*map(np.array, targets)], FakeTokenizer)
    assert batch.count == 5
    return {name: tensor.tolist() for name, tensor in tensors(batch).items()}


def test_pairs_for_an_encoder_decoder():
    assert pair_batch("encoder_decoder") == {
        "source": [[1, 2, 3], [4, 1001, 1001]],
        "source_visible": [[True] * 3, [True, False, False]],
        "tokens": [[1002, 5, 1001], [1002, 6, 7]],
        "targets": [[5, 1000, IGNORE_INDEX], [6, 7, 1000]],
    }


def test_pairs_for_a_decoder():
    ignored = IGNORE_INDEX
    assert pair_batch("decoder") == {
        "tokens": [[1, 2, 3, 1002, 5], [4, 1002, 6, 7, 1001]],
        "targets": [[ignored] * 3 + [5, 1000], [ignored, 6, 7, 1000, ignored]],
    }


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_truncated_pairs_fit(architecture):
    pairs = objective("pairs", 12, architecture)
    lengths = 1 + np.indices((29, 29)).reshape(2, -1).T
    kept = pairs.truncated_lengths(lengths)
    assert (kept <= lengths).all() and (kept >= 1).all()
    assert pairs.widths(kept).max() == 12
    before = pairs.widths(lengths).max(1)
    assert ((kept == lengths).all(1) == (before <= 12)).all(), "what fits is not truncated"


def test_a_context_that_is_too_short():
    with pytest.raises(ValueError, match="context_length is 2: too short for a span"):
        objective("span", context_length=2)
