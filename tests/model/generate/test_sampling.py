"""Which tokens can be sampled and how often; a sample depends on seed, row id and step alone."""

import math
import random
from itertools import product

import pytest
import torch

from model.generate.filters import filter_logits
from model.generate.sampling import Sampling, sample_next, uniform

GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn(3, 40, generator=GENERATOR, dtype=torch.float64) * 2
EDGES = LOGITS.new_tensor([0.0, 1e-300, 1 - 2**-53])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def most_likely(logits, top_k=None, top_p=1.0, min_p=0.0):
    """What remains of one row, by definition."""
    order = logits.argsort(descending=True)[:top_k]
    probs = logits[order].softmax(-1).tolist()
    kept = []
    for i, prob in zip(order.tolist(), probs, strict=True):
        mass = sum(probs[: len(kept)])
        if mass < top_p and prob >= min_p * probs[0]:
            kept.append(i)
    return sorted(kept)


FILTERS = [{"top_k": k} for k in (1, 2, 7, 40, 41)]
FILTERS += [{"top_p": p} for p in (1e-9, 0.3, 0.9, 0.999)]
FILTERS += [{"min_p": p} for p in (0.01, 0.2, 1.0)]
FILTERS += [{"top_p": 0.9, "top_k": 5}, {"top_p": 0.9, "top_k": 20, "min_p": 0.1}]


@DTYPES
@pytest.mark.parametrize("options", FILTERS)
def test_filters(options, dtype):
    logits = LOGITS.to(dtype)
    filtered = filter_logits(logits, Sampling(1.0, **options))
    for before, after in zip(logits, filtered, strict=True):
        kept = after.isfinite().nonzero()[:, 0]
        assert kept.tolist() == most_likely(before.double(), **options)
        assert torch.equal(after[kept], before[kept])


def test_top_p_of_one_keeps_every_token():
    """Though a float32 sum may reach 1 early."""
    logits = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    for top_k, n in ((60_000, 50_000), (9, 9)):
        assert filter_logits(logits, Sampling(1.0, top_k, top_p=1.0)).isfinite().sum() == n


@pytest.mark.parametrize("temperature", [0.0, 1e-40])
def test_a_strong_penalty(temperature):
    """Rewarded, the best seen token wins; penalized, the best of the others, or the least unlikely
    one."""
    logits = torch.tensor([[-3.0, 4.0, 2.0, 9.0, -1.0]])
    seen = torch.tensor([[True, True, True, False, True]])
    reward = Sampling(temperature, repetition_penalty=0.01)
    forbid = Sampling(temperature, repetition_penalty=100.0)
    assert sample_next(logits, seen, None, reward).item() == 1
    assert sample_next(logits, seen, None, forbid).item() == 3
    assert sample_next(-logits.abs(), seen | True, None, forbid).item() == 4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_probabilities(temperature):
    """20,000 samples with fixed seeds: no token is off by more than four deviations."""
    n = 20_000
    logits = LOGITS[0, :8]
    uniforms = logits.new_tensor([uniform(0, row_id, 5) for row_id in range(n)])
    drawn = sample_next(logits.expand(n, -1), None, uniforms, Sampling(temperature))
    probs = (logits / temperature).softmax(-1)
    errors = (drawn.bincount(minlength=8) - n * probs).abs()
    deviations = (n * probs * (1 - probs)).sqrt()
    assert (errors < 4 * deviations + 1).all()


@DTYPES
def test_filtered_tokens_are_never_sampled(dtype):
    """Nor are others whose probability is 0."""
    logits = torch.tensor([-1.0, 2.0, -1.0, 2.0, -math.inf], dtype=dtype)
    for filters in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.9), Sampling(1.0, min_p=0.5)):
        assert sample_next(logits.expand(3, -1), None, EDGES, filters).tolist() == [1, 1, 3]


def test_samples_are_drawn_on_the_device():
    sampling = Sampling(1.0, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=2.0)
    logits = LOGITS.to("meta")
    assert sample_next(logits, logits > 0, logits[:, 0], sampling).is_meta


def test_uniform_depends_on_seed_row_and_step():
    numbers = {uniform(*place) for place in product(range(10), repeat=3)}
    assert len(numbers) == 1000
    assert all(0 <= number < 1 for number in numbers)
    random.seed(1)
    assert uniform(1, 2, 3) == 0.531301946682319, "pinned: a seed keeps its text"


COLDEST = [Sampling(1e-40), Sampling(5e-324), Sampling(1e-40, top_p=1e-50, min_p=5e-324)]


@DTYPES
def test_extreme_temperatures_reach_the_limit(dtype):
    logits = LOGITS.to(dtype)
    for coldest in COLDEST:
        chosen = sample_next(logits, None, EDGES, coldest)
        assert torch.equal(logits.take_along_dim(chosen[:, None], 1)[:, 0], logits.amax(-1))
    # all tokens are equally likely
    drawn = sample_next(logits, None, LOGITS.new_tensor([0.01, 0.51, 0.99]), Sampling(1e308))
    assert drawn.tolist() == [0, 20, 39]
