"""Which tokens can be sampled and how often; a sample depends on seed, row id and step alone."""

import math
import random
from dataclasses import replace

import pytest
import torch

from model.generate.sampling import (
    Sampling,
    apply_repetition_penalty,
    filter_logits,
    sample_next,
    uniform,
)

LOGITS = torch.randn(3, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)


def allowed(**options):
    """The tokens that can be sampled from each row of LOGITS."""
    kept = filter_logits(LOGITS, Sampling(1.0, **options))
    assert torch.equal(kept[kept > -math.inf], LOGITS[kept > -math.inf])
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in kept]


def most_likely_first(row):
    return sorted(range(len(row)), key=lambda i: -row[i])


@pytest.mark.parametrize("k", [1, 2, 7, 40, 41])
def test_top_k(k):
    assert allowed(top_k=k) == [set(most_likely_first(row)[:k]) for row in LOGITS.tolist()]


@pytest.mark.parametrize("top_k", [40, 5])
@pytest.mark.parametrize("p", [1e-9, 0.3, 0.9, 0.999])
def test_top_p_is_the_smallest_set_with_that_probability(p, top_k):
    """Of what top_k keeps."""
    for kept, logits in zip(allowed(top_p=p, top_k=top_k), LOGITS, strict=True):
        top = logits.where(logits >= logits.topk(top_k).values[-1], -math.inf)
        probs = top.softmax(-1).tolist()
        expected = set()
        mass = 0.0
        for i in most_likely_first(probs):
            if mass >= p:
                break
            expected.add(i)
            mass += probs[i]
        assert kept == expected


def test_top_p_of_one_keeps_every_token():
    """Though a float32 sum may reach 1 early."""
    logits = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    assert filter_logits(logits, Sampling(1.0, top_p=1.0)).isfinite().all()
    assert filter_logits(logits, Sampling(1.0, top_k=9, top_p=1.0)).isfinite().sum() == 9


@pytest.mark.parametrize("p", [0.01, 0.2, 1.0])
def test_min_p_is_relative_to_the_maximum(p):
    for kept, probs in zip(allowed(min_p=p), LOGITS.softmax(-1).tolist(), strict=True):
        assert kept == {i for i, prob in enumerate(probs) if prob >= p * max(probs)}


def test_the_penalty_lowers_seen_tokens():
    seen = torch.zeros_like(LOGITS, dtype=torch.bool)
    seen[0, [1, 2, 3]] = True
    lower = apply_repetition_penalty(LOGITS, seen, 2.0)
    for i in (1, 2, 3):
        logit = LOGITS[0, i]
        assert lower[0, i] == (logit / 2 if logit > 0 else logit * 2)
    assert torch.equal(lower[~seen], LOGITS[~seen])


@DTYPES
def test_a_strong_penalty(dtype):
    """Rewarded, the best seen token wins; penalized, the best of the others, or the least unlikely
    one."""
    logits = torch.tensor([[-3.0, 4.0, 2.0, 9.0, -1.0]], dtype=dtype)
    seen = torch.tensor([[True, True, True, False, True]])
    everything = torch.ones_like(seen)
    for sampling in (Sampling(), Sampling(1e-40)):
        reward = replace(sampling, repetition_penalty=0.01)
        assert sample_next(logits, seen, [0.5], reward).item() == 1
        forbid = replace(sampling, repetition_penalty=100.0)
        assert sample_next(logits, seen, [0.5], forbid).item() == 3
        assert sample_next(-logits.abs(), everything, [0.5], forbid).item() == 4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_probabilities(temperature):
    """20,000 samples with fixed seeds: no token is off by more than four deviations."""
    n = 20_000
    uniforms = [uniform(0, row_id, 5) for row_id in range(n)]
    drawn = sample_next(LOGITS[:1, :8].expand(n, -1), None, uniforms, Sampling(temperature))
    probs = (LOGITS[0, :8] / temperature).softmax(-1)
    deviations = (n * probs * (1 - probs)).sqrt()
    assert ((drawn.bincount(minlength=8) - n * probs).abs() < 4 * deviations + 1).all()


def test_filtered_tokens_are_never_sampled():
    logits = LOGITS[:1].expand(4, -1)
    edges = [0.0, 1 - 2**-53, 0.5, 1e-300]
    for sampling in (Sampling(1.0, top_k=3), Sampling(3.0, top_p=0.5), Sampling(1.0, min_p=0.5)):
        kept = filter_logits(logits / sampling.temperature, sampling)
        for cast in (logits, logits.float(), logits.bfloat16()):
            chosen = sample_next(cast, None, edges, sampling)
            assert (kept.gather(1, chosen[:, None]) > -math.inf).all()
    last = torch.tensor([[0.0, 0.0, -math.inf]])  # the last token has probability 0
    assert sample_next(last, None, [1 - 2**-53], Sampling(1.0)).tolist() == [1]


def test_samples_are_drawn_on_the_device():
    sampling = Sampling(1.0, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=2.0)
    seen = torch.zeros_like(LOGITS, dtype=torch.bool, device="meta")
    assert sample_next(LOGITS.to("meta"), seen, [0.1, 0.2, 0.3], sampling).is_meta


def test_uniform_depends_on_seed_row_and_step():
    places = [(seed, row, step) for seed in range(10) for row in range(10) for step in range(10)]
    numbers = {uniform(*place) for place in places}
    assert len(numbers) == 1000
    assert all(0 <= number < 1 for number in numbers)
    random.seed(1)
    assert uniform(1, 2, 3) == 0.531301946682319, "pinned: a seed keeps its text"


@DTYPES
def test_extreme_temperatures_reach_the_limit(dtype):
    logits = LOGITS.to(dtype)
    for coldest in (Sampling(1e-40), Sampling(5e-324), Sampling(1e-40, top_p=1e-50, min_p=5e-324)):
        chosen = sample_next(logits, None, [0.0, 0.5, 1 - 2**-53], coldest)
        assert torch.equal(logits.gather(1, chosen[:, None])[:, 0], logits.amax(-1)), coldest
    # all tokens are equally likely
    for place, token in ((0.01, 0), (0.51, 20), (0.99, 39)):
        assert sample_next(logits, None, [place] * 3, Sampling(1e308)).tolist() == [token] * 3
