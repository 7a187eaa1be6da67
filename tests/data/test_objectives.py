"""What each objective predicts, and that no token is lost."""

import json

import numpy as np
import pytest
import torch

from configs.registry import build
from data.objectives import IGNORE_INDEX, OBJECTIVES
from data.shuffle import hash_seed, random_words
from data.tokenizers.tokenizer import Tokenizer, assign_ids
from tests.data.corpora import corpus, loader, objective, source
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
        part = batch(some)
        for name, tensor in (whole.inputs | {"targets": whole.targets}).items():
            assert torch.equal(({**part.inputs, "targets": part.targets})[name], tensor[some])
    assert whole.count == (whole.targets != IGNORE_INDEX).sum() > 0
    ids = [whole.inputs["tokens"], whole.inputs.get("source", whole.targets), whole.targets]
    assert all(x.shape[1] <= 32 for x in ids)
    assert all(x[x != IGNORE_INDEX].max() < 1000 + len(specials) for x in ids)
    if architecture != "encoder":
        for seen, row in zip(whole.inputs["tokens"].tolist(), whole.targets.tolist(), strict=True):
            texts = [(t, i) for t, i in enumerate(row) if 0 <= i < FakeTokenizer.n_ordinary]
            assert not [i for t, i in texts if i in seen[: t + 1]]


@pytest.mark.parametrize(
    ("width", "mask_prob"), [(128, 0.15), (100, 0.15), (7, 0.15), (1, 0.15), (64, 0.5)]
)
def test_masked_predicts_an_exact_fraction(width, mask_prob):
    given = rows(width)
    batch = objective("masked", context_length=width, mask_prob=mask_prob).batch(
        given, draw, FakeTokenizer
    )
    asked = batch.targets.numpy() != IGNORE_INDEX
    n = max(1, round(mask_prob * width))
    assert (asked.sum(1) == n).all() and batch.count == n * ROWS
    assert np.array_equal(batch.targets.numpy()[asked], given[asked])
    assert np.array_equal(batch.inputs["tokens"].numpy()[~asked], given[~asked])


def test_masked_replaces_by_mask_by_random_token_or_not_at_all():
    given = rows(512, 200)
    many = objective("masked", context_length=512).batch(
        given, lambda p, w: draw(p, w, 200), FakeTokenizer
    )
    asked, tokens = many.targets.numpy() != IGNORE_INDEX, many.inputs["tokens"].numpy()
    masked = (tokens == FakeTokenizer.specials["mask"])[asked].mean()
    kept = (tokens == given)[asked].mean()
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1, abs=0.01)
    other = tokens[asked & (tokens != given) & (tokens != FakeTokenizer.specials["mask"])]
    assert other.max() < FakeTokenizer.n_ordinary, "never a special token"
    assert len(np.unique(other)) > 700
    counts = asked.sum(0)  # every position as likely as the next
    assert counts.min() > 10 and counts.max() < 60


SPANS = [(128, 0.15, 3.0), (512, 0.15, 3.0), (32, 0.5, 4.0), (8, 0.15, 3.0)]


@pytest.mark.parametrize(("context_length", "noise_density", "mean"), SPANS)
def test_span_loses_no_token(context_length, noise_density, mean):
    """Replacing each sentinel by its span restores the text."""
    options = {
        "noise_density": noise_density,
        "mean_span_length": mean,
        "architecture": "encoder_decoder",
    }
    span = objective("span", context_length=context_length, **options)
    given = rows(span.seq_len)
    batch = span.batch(given, draw, FakeTokenizer)
    source_, tokens, targets = batch.inputs["source"], batch.inputs["tokens"], batch.targets
    assert (
        max(source_.shape[1], tokens.shape[1]) <= context_length and tokens.shape == targets.shape
    )
    assert batch.count == targets.numel()
    start, end = FakeTokenizer.specials["start"], FakeTokenizer.specials["end"]
    assert (tokens[:, 0] == start).all() and (targets[:, -1] == end).all()
    assert tokens[:, 1:].equal(targets[:, :-1])
    for row, source_row, answer in zip(
        given, source_.tolist(), targets[:, :-1].tolist(), strict=True
    ):
        spans = {}
        for i in answer:
            spans.setdefault(i, []) if i >= 1004 else spans[max(spans)].append(i)
        text = [i for token in source_row for i in (spans[token] if token >= 1004 else [token])]
        assert text == row.tolist()
        assert list(spans) == [1004 + i for i in range(len(spans))] and all(spans.values())

    cut, n = span.sizes(span.seq_len)
    assert tokens.shape[1] == 1 + cut + n
    assert span.longest(span.seq_len + 1) > context_length, "as long as the context allows"


def test_span_has_the_sizes_of_t5():
    span = objective("span", context_length=512, architecture="encoder_decoder")
    assert span.seq_len == 569 and span.longest(569) == 512 and span.sizes(569) == (85, 28)


PAIRS = [[1, 2, 3], [4]], [[5, 1000], [6, 7, 1000]]  # sources, targets


def arrays(rows):
    return [np.array(row) for row in rows]


def test_pairs_for_an_encoder_decoder():
    pairs = objective("pairs", architecture="encoder_decoder", context_length=8)
    batch = pairs.batch(*map(arrays, PAIRS), FakeTokenizer)
    assert batch.inputs["source"].tolist() == [[1, 2, 3], [4, 1001, 1001]]
    assert batch.inputs["source_visible"].tolist() == [[True] * 3, [True, False, False]]
    assert batch.inputs["tokens"].tolist() == [[1002, 5, 1001], [1002, 6, 7]]
    assert batch.targets.tolist() == [[5, 1000, IGNORE_INDEX], [6, 7, 1000]]
    assert batch.count == 5


def test_pairs_for_a_decoder():
    pairs = objective("pairs", architecture="decoder", context_length=8)
    batch = pairs.batch(*map(arrays, PAIRS), FakeTokenizer)
    assert batch.inputs["tokens"].tolist() == [[1, 2, 3, 1002, 5], [4, 1002, 6, 7, 1001]]
    ignored = IGNORE_INDEX
    assert batch.targets.tolist() == [[ignored] * 3 + [5, 1000], [ignored, 6, 7, 1000, ignored]]
    assert batch.count == 5


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_truncated_pairs_fit(architecture):
    pairs = objective("pairs", architecture=architecture, context_length=12)
    lengths = np.stack(np.meshgrid(np.arange(1, 30), np.arange(1, 30)), 2).reshape(-1, 2)
    kept = pairs.truncated_lengths(lengths)
    assert (kept <= lengths).all() and (kept >= 1).all()
    assert pairs.widths(kept).max() == 12
    before = pairs.widths(lengths).max(1)
    assert ((kept == lengths).all(1) == (before <= 12)).all(), "what fits is not truncated"


def test_a_context_that_is_too_short():
    with pytest.raises(ValueError, match="context_length is 2: too short for a span"):
        objective("span", context_length=2)


def test_a_truncated_target_has_no_end_token(tmp_path):
    rows = [("abcdefghij", "klmnopqrst"), ("x", "y"), ("u", "v")]
    lines = [json.dumps({"source": source, "target": target}) + "\n" for source, target in rows]
    (tmp_path / "t.jsonl").write_text("".join(lines))
    made = corpus(tmp_path, source("pairs", path=str(tmp_path / "t.jsonl")), val_fraction=1e-6)
    options = {"architecture": "encoder_decoder", "context_length": 6, "too_long": "truncate"}
    seen = set()
    for part in (made.train, made.validation):
        pairs = loader(part, made.tokenizer, "pairs", batch_size=1, **options)
        for batch in pairs.evaluation():
            ids = [*batch.inputs["source"], *batch.inputs["tokens"], *batch.targets]
            seen.add(tuple(made.tokenizer.decode_with_specials(row.tolist()) for row in ids))

    cut = ("abcdef", "<start>klmno", "klmnop")
    assert seen == {cut, ("x", "<start>y", "y<end>"), ("u", "<start>v", "v<end>")}
