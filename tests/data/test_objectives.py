"""What each objective predicts, and that no token is lost."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from configs.registry import build
from configs.schema import IGNORE_INDEX
from data.loader import Loader
from data.objectives import OBJECTIVES
from data.shuffle import hash_seed, random_words
from data.tokenizers.tokenizer import Tokenizer, assign_ids
from tests.data.corpora import SPECIALS, objective, tensors
from tests.parts import ARCHITECTURES, kind_options, kinds, refused

ROWS = 64
N_ORDINARY = 1000
NAMES = (*SPECIALS, *(f"sentinel_{i}" for i in range(60)))
TOKENIZER = Tokenizer(N_ORDINARY, assign_ids(NAMES, N_ORDINARY))
END, PAD, START, MASK, SENTINEL = range(N_ORDINARY, N_ORDINARY + 5)


def draw(purpose, width, rows=ROWS):
    return random_words(hash_seed("test", purpose), np.arange(rows), width)


def rows(length, n=ROWS):
    return np.arange(n * length).reshape(n, length) % N_ORDINARY


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", kinds("objective", OBJECTIVES))
def test_properties_of_every_objective(kind, architecture):
    """Rows are independent, ids are in the vocabulary, and no position of a decoder sees its target."""
    if architecture not in OBJECTIVES[kind].architectures:
        return
    shared = {"context_length": 32, "architecture": architecture, "classes": ["a", "b"]}
    made = build("objective", OBJECTIVES, kind_options("objective", kind), shared)
    specials = assign_ids(made.specials, N_ORDINARY)
    loader = SimpleNamespace(objective=made, tokenizer=Tokenizer(N_ORDINARY, specials))
    call = partial(Loader.call_objective, loader)  # without a step, as in an evaluation

    def batch(some):
        texts = rows(16)[some]
        if made.input_kind == "pairs":
            return call(list(texts[:, :9]), list(texts[:, 9:]))
        if made.input_kind == "chat":
            masks = np.arange(16) % 5 > np.arange(ROWS)[:, None] % 3
            return call(list(texts), list(masks[some]))
        if made.input_kind == "labels":
            return call(list(texts), list(np.resize([[97], [98]], (ROWS, 1))[some]))
        texts = rows(made.seq_len + made.lookahead)[some]
        return call(texts, lambda *names: draw(*names)[some])

    whole = batch(slice(None))
    for some in (slice(3, 4), slice(7, 9)):
        part = tensors(batch(some))
        for name, tensor in tensors(whole).items():
            assert torch.equal(part[name], tensor[some])
    assert whole.count == (whole.targets != IGNORE_INDEX).sum() > 0
    for ids in tensors(whole).values():
        assert ids.shape[1] <= 32
        assert ids[ids != IGNORE_INDEX].max() < N_ORDINARY + len(specials)
    if architecture == "encoder" or made.input_kind == "labels":
        return
    seen = whole.inputs["tokens"]
    for position, target in enumerate(whole.targets.T):
        is_seen = seen[:, : position + 1] == target[:, None]
        is_text = (target >= 0) & (target < N_ORDINARY)
        assert not is_seen[is_text].any()


def masked(width, n=ROWS, **options):
    """Rows of text; of the batch that asks for it, what is asked, and the tokens."""
    given = rows(width, n)
    made = objective("masked", context_length=width, **options)
    batch = made.batch(given, lambda purpose, width: draw(purpose, width, n), TOKENIZER)
    targets = batch.targets.numpy()
    asked = targets != IGNORE_INDEX
    assert np.array_equal(targets[asked], given[asked])
    return given, asked, batch.inputs["tokens"].numpy()


@pytest.mark.parametrize("width, mask_prob", [(100, 0.15), (7, 0.15), (1, 0.15), (64, 0.5)])
def test_masked_predicts_an_exact_fraction(width, mask_prob):
    given, asked, tokens = masked(width, mask_prob=mask_prob)
    assert (asked.sum(1) == max(1, round(mask_prob * width))).all()
    assert np.array_equal(tokens[~asked], given[~asked])


def test_masked_replaces_by_mask_by_random_token_or_not_at_all():
    given, asked, tokens = masked(512, 200)
    is_mask = tokens == MASK
    is_same = tokens == given
    assert is_mask[asked].mean() == pytest.approx(0.8, abs=0.01)
    assert is_same[asked].mean() == pytest.approx(0.1, abs=0.01)
    other = tokens[asked & ~is_same & ~is_mask]
    assert other.max() < N_ORDINARY, "never a special token"
    assert len(np.unique(other)) > 700
    counts = asked.sum(0)  # every position as likely as the next
    assert counts.min() > 10 and counts.max() < 60


SPANS = [(128, 0.15, 3.0), (512, 0.15, 3.0), (32, 0.5, 4.0), (8, 0.15, 3.0)]


@pytest.mark.parametrize("context_length, noise_density, mean", SPANS)
def test_span_loses_no_token(context_length, noise_density, mean):
    """Replacing each sentinel by its span restores the text."""
    options = {"noise_density": noise_density, "mean_span_length": mean}
    span = objective("span", context_length, "encoder_decoder", **options)
    given = rows(span.seq_len)
    batch = span.batch(given, draw, TOKENIZER)
    source = batch.inputs["source"]
    tokens, targets = batch.inputs["tokens"], batch.targets
    removed, n = span.sizes(span.seq_len)
    assert tokens.shape[1] == targets.shape[1] == 1 + removed + n
    assert max(source.shape[1], tokens.shape[1]) <= context_length
    assert span.longest(span.seq_len + 1) > context_length, "as long as the context allows"
    assert (tokens[:, 0] == START).all()
    assert (targets[:, -1] == END).all()
    answers = targets[:, :-1]
    assert answers.equal(tokens[:, 1:])

    for text, kept, answer in zip(given, source.tolist(), answers.tolist(), strict=True):
        spans = {}
        for i in answer:
            if i >= SENTINEL:
                span_of = spans[i] = []
            else:
                span_of.append(i)
        restored = [i for token in kept for i in spans.get(token, [token])]
        assert restored == text.tolist()
        assert list(spans) == list(range(SENTINEL, SENTINEL + n))
        assert all(spans.values())


def test_span_has_the_sizes_of_t5():
    span = objective("span", 512, "encoder_decoder")
    assert span.seq_len == 569 and span.longest(569) == 512
    assert span.sizes(569) == (85, 28)
    with refused("context_length is 2: too short for a span"):
        objective("span", context_length=2)


PAIRS = {
    "encoder_decoder": {
        "source": [[1, 2, 3], [4, PAD, PAD]],
        "source_visible": [[True, True, True], [True, False, False]],
        "tokens": [[START, 5, PAD], [START, 6, 7]],
        "targets": [[5, END, IGNORE_INDEX], [6, 7, END]],
    },
    "decoder": {
        "tokens": [[1, 2, 3, START, 5], [4, START, 6, 7, PAD]],
        "targets": [
            [IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX, 5, END],
            [IGNORE_INDEX, 6, 7, END, IGNORE_INDEX],
        ],
    },
}


@pytest.mark.parametrize("architecture", PAIRS)
def test_pairs_by_hand(architecture):
    sources = [np.array([1, 2, 3]), np.array([4])]
    targets = [np.array([5, END]), np.array([6, 7, END])]
    batch = objective("pairs", 8, architecture).batch(sources, targets, TOKENIZER)
    assert batch.count == 5
    found = {name: tensor.tolist() for name, tensor in tensors(batch).items()}
    assert found == PAIRS[architecture]


@pytest.mark.parametrize("architecture", PAIRS)
def test_truncated_pairs_fit(architecture):
    pairs = objective("pairs", 12, architecture)
    lengths = 1 + np.indices((29, 29)).reshape(2, -1).T
    kept = pairs.truncated_lengths(lengths)
    assert (kept <= lengths).all() and (kept >= 1).all()
    assert pairs.widths(kept).max() == 12
    fits = pairs.widths(lengths).max(1) <= 12
    assert ((kept == lengths).all(1) == fits).all(), "what fits is not truncated"
