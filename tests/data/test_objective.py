"""What each objective asks, and that nothing is lost on the way."""

import numpy as np
import pytest

from data.loader import GROUP
from data.objectives import IGNORE_INDEX
from data.shuffle import hash_seed, random_words
from model.loss import IGNORE_INDEX as OF_THE_LOSS
from tests.data.corpora import corpus, objective, source, stream, vocabulary

ROWS = 64


class Words:
    """A tokenizer as far as an objective looks at it."""

    n_ordinary = 1000
    specials = {"end": 1000, "pad": 1001, "start": 1002, "mask": 1003} | {
        f"sentinel_{i}": 1004 + i for i in range(60)
    }


def draw(purpose, width, rows=ROWS):
    return random_words(hash_seed("test", purpose), np.arange(rows), width)


def rows(length, n=ROWS):
    return np.arange(n * length, dtype=np.int64).reshape(n, length) % Words.n_ordinary


def test_silence_is_the_same_to_data_and_loss():
    assert IGNORE_INDEX == OF_THE_LOSS


@pytest.mark.parametrize(("width", "share"), [(128, 0.15), (100, 0.15), (7, 0.15), (1, 0.15), (64, 0.5)])
def test_masked_asks_exactly_its_share(width, share):
    given = rows(width)
    batch = objective("masked", context_length=width, share=share).batch(given, draw, Words)
    asked = batch.targets.numpy() != IGNORE_INDEX
    n = max(1, round(share * width))
    assert (asked.sum(1) == n).all() and batch.count == n * ROWS
    assert np.array_equal(batch.targets.numpy()[asked], given[asked])
    assert np.array_equal(batch.inputs["tokens"].numpy()[~asked], given[~asked])


def test_masked_hides_by_mask_by_another_token_or_not_at_all():
    given = rows(512, 200)
    many = objective("masked", context_length=512).batch(given, lambda p, w: draw(p, w, 200), Words)
    asked, tokens = many.targets.numpy() != IGNORE_INDEX, many.inputs["tokens"].numpy()
    masked = (tokens == Words.specials["mask"])[asked].mean()
    kept = (tokens == given)[asked].mean()
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1, abs=0.01)
    other = tokens[asked & (tokens != given) & (tokens != Words.specials["mask"])]
    assert other.max() < Words.n_ordinary, "never a special token"
    assert len(np.unique(other)) > 700
    counts = asked.sum(0)  # every position as likely as the next
    assert counts.min() > 10 and counts.max() < 60


@pytest.mark.parametrize(
    ("context_length", "share", "mean"), [(128, 0.15, 3.0), (512, 0.15, 3.0), (32, 0.5, 4.0), (8, 0.15, 3.0)]
)
def test_span_loses_no_token(context_length, share, mean):
    """Putting each span back in the place of its sentinel gives the text again."""
    span = objective(
        "span",
        context_length=context_length,
        architecture="encoder_decoder",
        share=share,
        mean_span_length=mean,
    )
    given = rows(span.window)
    batch = span.batch(given, draw, Words)
    source_, tokens, targets = batch.inputs["source"], batch.inputs["tokens"], batch.targets
    assert (
        source_.shape[1] <= context_length
        and tokens.shape == targets.shape
        and tokens.shape[1] <= context_length
    )
    assert batch.count == targets.numel()
    assert (tokens[:, 0] == Words.specials["start"]).all() and (targets[:, -1] == Words.specials["end"]).all()
    assert tokens[:, 1:].equal(targets[:, :-1])
    for row, source_row, answer in zip(given, source_.tolist(), targets[:, :-1].tolist(), strict=True):
        spans = {}
        for i in answer:
            spans.setdefault(i, []) if i >= 1004 else spans[max(spans)].append(i)
        text = [i for token in source_row for i in (spans[token] if token >= 1004 else [token])]
        assert text == row.tolist()
        assert list(spans) == [1004 + i for i in range(len(spans))] and all(spans.values())
    cut, n = span.sizes(span.window)
    assert tokens.shape[1] == 1 + cut + n
    assert span.longest(span.window + 1) > context_length, "the window is as long as the context allows"


def test_span_has_the_sizes_of_t5():
    span = objective("span", context_length=512, architecture="encoder_decoder")
    assert span.window == 569 and span.longest(569) == 512 and span.sizes(569) == (85, 28)


def test_spans_are_cut_anywhere():
    span = objective("span", context_length=64, architecture="encoder_decoder")
    given = np.tile(np.arange(span.window), (400, 1))
    source_ = span.batch(given, lambda p, w: draw(p, w, 400), Words).inputs["source"].numpy()
    kept = [(source_ == i).any(1).mean() for i in range(1, span.window - 8)]
    assert min(kept) > 0.8 and max(kept) < 1  # a text begins with what is kept and ends with a span


def test_pairs_for_an_encoder_decoder():
    answer = objective("pairs", architecture="encoder_decoder", context_length=8)
    batch = answer.batch([[1, 2, 3], [4]], [[5, 1000], [6, 7, 1000]], (3, 3), Words)
    assert batch.inputs["source"].tolist() == [[1, 2, 3], [4, 1001, 1001]]
    assert batch.inputs["source_visible"].tolist() == [[True] * 3, [True, False, False]]
    assert batch.inputs["tokens"].tolist() == [[1002, 5, 1001], [1002, 6, 7]]
    assert batch.targets.tolist() == [[5, 1000, IGNORE_INDEX], [6, 7, 1000]]
    assert batch.count == 5


def test_pairs_for_a_decoder():
    answer = objective("pairs", architecture="decoder", context_length=8)
    batch = answer.batch([[1, 2, 3], [4]], [[5, 1000], [6, 7, 1000]], (5,), Words)
    assert batch.inputs["tokens"].tolist() == [[1, 2, 3, 1002, 5], [4, 1002, 6, 7, 1001]]
    assert batch.targets.tolist() == [
        [IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX, 5, 1000],
        [IGNORE_INDEX, 6, 7, 1000, IGNORE_INDEX],
    ]
    assert batch.count == 5


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
def test_what_is_kept_of_a_pair_fits(architecture):
    answer = objective("pairs", architecture=architecture, context_length=12)
    lengths = np.stack(np.meshgrid(np.arange(1, 30), np.arange(1, 30)), 2).reshape(-1, 2)
    kept = np.stack(answer.kept(*lengths.T), 1)
    assert (kept <= lengths).all() and (kept >= 1).all()
    assert answer.widths(*kept.T).max() == 12
    before = answer.widths(*lengths.T).max(1)
    assert ((kept == lengths).all(1) == (before <= 12)).all(), "what fits is not cut"


@pytest.fixture(scope="module")
def docstrings(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("docstrings"), source("docstrings"), words="bpe")


@pytest.mark.parametrize("context_length", [128, 256, 512])
@pytest.mark.parametrize("batch_size", [16, 64])
def test_docstrings_are_hardly_padded(docstrings, context_length, batch_size):
    """Of sources and targets together."""
    sizes = {"architecture": "encoder_decoder", "context_length": context_length, "batch_size": batch_size}
    answers = stream(docstrings.train, docstrings.tokenizer, "pairs", **sizes)
    batches = [answers.batch(step) for step in range(GROUP)]
    filled = sum(int(b.inputs["source_visible"].sum()) + b.count for b in batches)
    given = sum(b.inputs["source"].numel() + b.targets.numel() for b in batches)
    assert 1 - filled / given < 0.10


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("masked", {"share": 0.0}, "share must be between 0 and 1 and is 0"),
        ("masked", {"share": 1.5}, "share must be between 0 and 1 and is 1.5"),
        ("masked", {"share": "much"}, "share is 'much'; expected a finite number"),
        ("span", {"share": 1.0}, "share must be between 0 and 1"),
        ("span", {"mean_span_length": 0.5}, "mean_span_length must be at least 1 and is 0.5"),
        ("span", {"context_length": 2}, "a context of 2 has no room for a span; raise model.context_length"),
        ("pairs", {"context_length": 2}, "a context of 2 has no room for a pair; raise model.context_length"),
        ("pairs", {"too_long": "ask"}, "too_long is 'ask'; choose one of: drop, cut, refuse"),
    ],
)
def test_options_that_make_no_sense(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        objective(name, **options)


def test_specials_are_known_before_the_tokenizer():
    span = objective("span", context_length=32, architecture="encoder_decoder")
    tokenizer = vocabulary("byte").make(None, list(span.specials))
    assert span.batch(rows(span.window) % 256, draw, tokenizer).targets.max() < tokenizer.vocab_size


@pytest.mark.parametrize("architecture", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize("too_long", ["drop", "cut"])
def test_no_batch_exceeds_the_context(docstrings, architecture, too_long):
    sizes = {"architecture": architecture, "context_length": 100, "batch_size": 32, "too_long": too_long}
    answers = stream(docstrings.train, docstrings.tokenizer, "pairs", **sizes)
    widths = [x.shape[1] for step in range(GROUP) for x in answers.batch(step).inputs.values()]
    assert 90 < max(widths) <= 100


def test_a_target_that_is_cut_has_no_end(tmp_path):
    rows = [f'{{"source": "{c * 10}", "target": "{c * 9}{c.upper()}"}}\n' for c in "abcdefghij"]
    (tmp_path / "t.jsonl").write_text("".join([*rows, '{"source": "x", "target": "y"}\n']))
    made = corpus(tmp_path, source("pairs", path=str(tmp_path / "t.jsonl")), validation=0.5)
    show, seen = made.tokenizer.show, set()
    for part in (made.train, made.validation):
        answers = stream(
            part, made.tokenizer, "pairs", architecture="encoder_decoder", context_length=6, too_long="cut"
        )
        for batch in answers.evaluation():
            for row in zip(batch.inputs["source"], batch.inputs["tokens"], batch.targets, strict=True):
                seen.add(tuple(show([i for i in text.tolist() if i != IGNORE_INDEX]) for text in row))
    seen = {tuple(text.replace("<pad>", "") for text in row) for row in seen}
    assert ("aaaaaa", "<start>aaaaa", "aaaaaa") in seen and ("x", "<start>y", "y<end>") in seen
    assert len(seen) == 11
