"""What may be drawn, how often it is, and that nothing else than seed, row and step decides a draw."""

import math
import random

import pytest
import torch

from model.generate.decode import decode, generate
from model.generate.sampling import (
    GREEDY,
    Sampling,
    apply_repetition_penalty,
    filter_logits,
    sample_next,
    uniform,
)
from tests.model.test_generate import PROMPTS, SOURCES, finish, slowly, talkative
from tests.parts import VOCABULARY, alive, names, part, tiny

SCORES = torch.randn(3, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2


def allowed(**options):
    """The words that may be drawn from each row of SCORES."""
    kept = filter_logits(SCORES, Sampling(1.0, **options))
    assert torch.equal(kept[kept > -math.inf], SCORES[kept > -math.inf])
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in kept]


def by_likelihood(row):
    return sorted(range(len(row)), key=lambda i: -row[i])


@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_top_k(k):
    assert allowed(top_k=k) == [set(by_likelihood(row)[:k]) for row in SCORES.tolist()]


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.9, 0.999])
def test_top_p_is_the_smallest_set_that_reaches_p(p):
    for words, shares in zip(allowed(top_p=p), SCORES.softmax(-1).tolist(), strict=True):
        expected, mass = set(), 0.0
        for i in by_likelihood(shares):
            if mass >= p:
                break
            expected.add(i)
            mass += shares[i]
        assert words == expected


@pytest.mark.parametrize("p", [0.01, 0.2, 1.0])
def test_min_p_is_a_share_of_the_likeliest(p):
    for words, shares in zip(allowed(min_p=p), SCORES.softmax(-1).tolist(), strict=True):
        assert words == {i for i, share in enumerate(shares) if share >= p * max(shares)}


def test_one_after_another():
    """top_p counts among what top_k has left."""
    five = SCORES.topk(5).values.softmax(-1)
    for words, shares in zip(allowed(top_k=5, top_p=0.5), five, strict=True):
        assert len(words) == 1 + int((shares.cumsum(0) < 0.5).sum())


def test_the_penalty_lowers_what_is_there():
    written = torch.zeros_like(SCORES, dtype=torch.bool)
    written[0, [1, 2, 3]] = True
    lower = apply_repetition_penalty(SCORES, written, 2.0)
    for i in (1, 2, 3):
        score = SCORES[0, i]
        assert lower[0, i] == (score / 2 if score > 0 else score * 2)
    assert torch.equal(lower[~written], SCORES[~written])


def test_words_are_drawn_as_often_as_they_are_likely():
    """20,000 draws of fixed seeds, at each temperature: no word is off by more than four deviations."""
    scores, n = SCORES[:1, :8].expand(20_000, -1), 20_000
    for temperature in (0.5, 1.0, 2.0):
        draws = [uniform(0, number, 5) for number in range(n)]
        found = sample_next(scores, None, draws, Sampling(temperature)).bincount(minlength=8)
        shares = (SCORES[0, :8] / temperature).softmax(-1)
        assert ((found - n * shares).abs() < 4 * (n * shares * (1 - shares)).sqrt() + 1).all()


def test_what_is_cut_off_is_never_drawn():
    scores, edges = SCORES[:1].expand(4, -1), [0.0, 1 - 2**-53, 0.5, 1e-300]
    for seldom in (Sampling(1.0, top_k=3), Sampling(3.0, top_p=0.5), Sampling(1.0, min_p=0.5)):
        kept = filter_logits(scores / seldom.temperature, seldom)
        for words in (scores, scores.float(), scores.bfloat16()):
            chosen = sample_next(words, None, edges, seldom)
            assert (kept.gather(1, chosen[:, None]) > -math.inf).all()
    last = torch.tensor([[0.0, 0.0, -math.inf]])  # a share of zero at the end
    assert sample_next(last, None, [1 - 2**-53], Sampling(1.0)).tolist() == [1]


def test_a_draw_follows_from_seed_row_and_step():
    draws = {uniform(seed, row, step) for seed in range(10) for row in range(10) for step in range(10)}
    assert len(draws) == 1000 and all(0 <= d < 1 for d in draws)
    random.seed(1)
    assert uniform(1, 2, 3) == 0.531301946682319, "pinned: the texts of old seeds hold"


BOLD = Sampling(temperature=1.5, top_k=20, top_p=0.95, repetition_penalty=1.3, seed=7)


@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("attention", ["mha_nobias", "gqa", "mla"])
def test_cached_is_uncached_and_a_batch_is_its_rows(attention, position):
    net = talkative(attention=part("attention", attention), position=part("position", position))
    expected = [slowly(net, prompt, 20, sampling=BOLD, number=i) for i, prompt in enumerate(PROMPTS)]
    assert finish(generate(net, PROMPTS, max_new_tokens=20, sampling=BOLD)) == expected
    for i, row in enumerate(expected):
        assert finish(generate(net, [PROMPTS[i]], max_new_tokens=20, sampling=BOLD, numbers=[i])) == [row]


@pytest.mark.parametrize("position", names("position"))
def test_an_answer_too(position):
    net = talkative("encoder_decoder", position=part("position", position))
    expected = [slowly(net, [1], 20, source, BOLD, i) for i, source in enumerate(SOURCES)]
    assert finish(generate(net, [[1]] * 3, sources=SOURCES, max_new_tokens=20, sampling=BOLD)) == expected


def test_seeds_and_rows_make_the_difference():
    net = talkative()

    def texts(seed):
        drawn = generate(net, [[1]] * 4, max_new_tokens=8, sampling=Sampling(1.0, seed=seed))
        return [tuple(row) for row in finish(drawn)]

    assert texts(0) == texts(0)
    assert len({*texts(0), *texts(1)}) == 8


def test_the_coldest_draw_is_greedy():
    net = talkative()
    greedy = finish(generate(net, PROMPTS, max_new_tokens=8, sampling=GREEDY))
    for cold in (Sampling(1e-6), Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-9), Sampling(1.0, min_p=1.0)):
        assert finish(generate(net, PROMPTS, max_new_tokens=8, sampling=cold)) == greedy


EDGES = [
    Sampling(1e-40),
    Sampling(5e-324),
    Sampling(1.0, top_p=1e-50),
    Sampling(1.0, top_p=5e-324),
    Sampling(1e-40, top_p=1e-50, min_p=5e-324),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_at_the_edge_of_what_is_allowed_lies_the_limit(dtype):
    scores, draws = SCORES.to(dtype), [0.0, 0.5, 1 - 2**-53]
    for edge in EDGES:
        chosen = sample_next(scores, None, draws, edge)
        assert torch.equal(scores.gather(1, chosen[:, None])[:, 0], scores.amax(-1)), edge
    hottest = [sample_next(scores, None, [at] * 3, Sampling(1e308)).tolist() for at in (0.01, 0.51, 0.99)]
    assert hottest == [[0] * 3, [20] * 3, [39] * 3], "all are alike"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_strongest_penalty_too(dtype):
    """Of the words that are there the likeliest stays when they are as good as forced, and the least unlikely
    when all of them are as good as forbidden."""
    scores = torch.tensor([[-3.0, 4.0, 2.0, 9.0, -1.0]], dtype=dtype)
    written = torch.tensor([[True, True, True, False, True]])
    everywhere = torch.ones_like(written)
    for sampling in (Sampling(), Sampling(1.0), Sampling(1e-40)):
        for penalty in (5e-324, 1e-40, 1e-5):
            again = sampling._replace(repetition_penalty=penalty)
            assert sample_next(scores, written, [0.5], again).item() == 1
            assert sample_next(scores, everywhere, [0.5], again).item() == 3
        for penalty in (1e9, 1e308):
            never = sampling._replace(repetition_penalty=penalty)
            assert sample_next(scores, written, [0.5], never).item() == 3
            assert sample_next(-scores.abs(), everywhere, [0.5], never).item() == 4
    largest = torch.finfo(dtype).max
    for penalty in (5e-324, 1e308):
        mended = apply_repetition_penalty(
            torch.tensor([[largest, -largest]], dtype=dtype).float(), everywhere[:, :2], penalty
        )
        assert mended.isfinite().all()


def test_all_of_the_probability_is_every_word():
    scores = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    assert filter_logits(scores, Sampling(1.0, top_p=1.0)).isfinite().all()
    assert filter_logits(scores, Sampling(1.0, top_k=9, top_p=1.0)).isfinite().sum() == 9


def test_a_high_penalty_repeats_nothing():
    net = talkative()
    [row] = finish(generate(net, [[1]], max_new_tokens=14, sampling=Sampling(repetition_penalty=1e9)))
    assert len({1, *row}) == 15


@torch.no_grad()
def test_logprobs_are_the_models_own():
    net = talkative()
    for sampling in (GREEDY, BOLD):
        told = list(decode(net, [PROMPTS[0]], max_new_tokens=6, sampling=sampling))
        row = PROMPTS[0] + [step.ids[0] for step in told]
        shares = net(torch.tensor([row]))[0].log_softmax(-1)
        expected = [shares[t - 1, row[t]].item() for t in range(len(PROMPTS[0]), len(row))]
        assert [step.logprobs()[0] for step in told] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; expected a number from 0 on"),
        ({"temperature": math.nan}, "temperature is nan; expected a number"),
        ({"temperature": math.inf}, "temperature is inf; expected a number"),
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"top_k": 0}, f"top_k is 0; expected a whole number from 1 to {VOCABULARY}, the vocabulary"),
        ({"top_k": VOCABULARY + 1}, f"top_k is {VOCABULARY + 1}; expected a whole number"),
        ({"top_p": 0.0}, "top_p is 0.0; expected a number above 0 and up to 1"),
        ({"top_p": 1.5}, "top_p is 1.5; expected"),
        ({"top_p": math.nan}, "top_p is nan; expected"),
        ({"min_p": -1.0}, "min_p is -1.0; expected a number above 0 and up to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; expected a number above 0"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0 on"),
    ],
)
def test_errors(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        generate(alive(tiny()), [[1]], max_new_tokens=1, sampling=Sampling(**{"temperature": 1.0} | options))


def test_each_prompt_has_one_number():
    with pytest.raises(ValueError, match="there are 2 numbers and 1 prompts"):
        generate(alive(tiny()), [[1]], max_new_tokens=1, numbers=[1, 2])


def test_scores_that_are_no_numbers_are_told():
    net = alive(tiny())
    net.head.map.weight.data[3, 0] = math.nan
    with pytest.raises(FloatingPointError, match="the model's scores are not finite numbers"):
        list(generate(net, [[1]], max_new_tokens=1))
