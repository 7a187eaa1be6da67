"""Beams: wide enough they find the best answer there is; of width one they are greedy."""

from itertools import product

import pytest
import torch

from model.generate.beams import Hypothesis, beam_search, can_still_win
from model.generate.decode import generate
from tests.model.test_generate import SOURCES, finish, talkative
from tests.parts import alive, names, part, tiny

FEW, END = 6, 5


def few_words(**changes):
    return alive(tiny("encoder_decoder", norm=part("norm", "rmsnorm_no_weight"), **changes), vocabulary=FEW)


@torch.no_grad()
def exhaustive(net, source, length_penalty, most):
    """The best of all answers, each scored by one forward pass without a cache."""
    whole = [[*row, END] for n in range(most) for row in product(range(FEW - 1), repeat=n)]
    whole += [list(row) for row in product(range(FEW - 1), repeat=most)]
    found = []
    for ids in whole:
        logprobs = net(torch.tensor([source]), torch.tensor([[1, *ids[:-1]]]))[0].log_softmax(-1)
        found.append(Hypothesis(ids, [logprobs[t, i].item() for t, i in enumerate(ids)]))
    return max(found, key=lambda answer: sum(answer.logprobs) / len(answer.ids) ** length_penalty)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("position", ["learned", "rope", "relative"])
def test_wide_beams_find_the_best(position, length_penalty):
    net, source = few_words(position=part("position", position)), [1, 4, 2]
    best = exhaustive(net, source, length_penalty, most=3)
    # there are never more beginnings than this, so that none is forgotten
    found = beam_search(
        net, source, [1], beams=FEW**3, length_penalty=length_penalty, max_new_tokens=3, stop=END
    )
    assert found.ids == best.ids
    assert found.logprobs == pytest.approx(best.logprobs, abs=1e-10)


@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("source", SOURCES)
def test_one_beam_is_greedy(source, position):
    net = talkative("encoder_decoder", position=part("position", position))
    [greedy] = finish(generate(net, [[1]], sources=[source], max_new_tokens=20, stop=3))  # past the context
    found = beam_search(net, source, [1], beams=1, length_penalty=0.0, max_new_tokens=20, stop=3)
    assert found.ids == greedy


@torch.no_grad()
def test_an_answer_knows_how_likely_it_is():
    """Beams change places on the way; every cache moves with them."""
    net = talkative("encoder_decoder", attention=part("attention", "mla"), position=part("position", "rope"))
    for source in SOURCES:
        found = beam_search(net, source, [1], beams=4, length_penalty=1.0, max_new_tokens=12)
        row = torch.tensor([[1, *found.ids]])
        logprobs = net(torch.tensor([source]), row[:, :-1])[0].log_softmax(-1)
        expected = logprobs.gather(-1, row[0, 1:, None])[:, 0].tolist()
        assert found.logprobs == pytest.approx(expected, abs=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("plain", [True, False])
def test_past_the_context(plain, monkeypatch):
    """The source is read anew for the beams that go on, each with the newer half of its own text."""
    monkeypatch.setattr("model.attend.plain_is_faster", lambda q, k, v: plain)
    net = talkative("encoder_decoder")
    found = beam_search(net, SOURCES[0], [1], beams=4, length_penalty=1.0, max_new_tokens=24)
    row, expected = [1], []
    for i in found.ids:
        row = row[-8:] if len(row) > 16 else row
        logprobs = net(torch.tensor([SOURCES[0]]), torch.tensor([row]))[0, -1].log_softmax(-1)
        expected.append(logprobs[i].item())
        row = [*row, i]
    assert found.logprobs == pytest.approx(expected, abs=1e-10) and len(found.ids) == 24


def test_hope_reaches_to_the_longest_answer_where_length_is_favoured():
    going, best = Hypothesis([1], [-2.0]), Hypothesis([1, END], [-0.5, -0.5])
    assert can_still_win(going, best, 1.0, most=10) and not can_still_win(going, best, 1.0, most=3)
    assert not can_still_win(going, best, 0.0, most=10)
    assert can_still_win(Hypothesis([1], [-0.6]), best, -1.0, most=10)  # -1.2 at once against -2


def test_more_beams_are_not_worse():
    net = talkative("encoder_decoder")
    sums = [
        sum(beam_search(net, SOURCES[0], [1], beams=n, length_penalty=0.0, max_new_tokens=8).logprobs)
        for n in (1, 4, 16)
    ]
    assert sums == sorted(sums) and sums[0] < sums[-1]


def test_a_source_is_encoded_once():
    net, calls = talkative("encoder_decoder"), []
    net.encoder.register_forward_pre_hook(lambda module, given: calls.append(given[0].shape[:2]))
    beam_search(net, SOURCES[0], [1], beams=4, length_penalty=1.0, max_new_tokens=8)
    assert calls == [(1, 7)]


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        ("decoder", {}, "beams search for an encoder_decoder's answer; this model is a decoder"),
        ("encoder_decoder", {"beams": 0}, "beams is 0; expected a whole number from 1 to 1000"),
        ("encoder_decoder", {"beams": 2.0}, "beams is 2.0; expected"),
        (
            "encoder_decoder",
            {"length_penalty": float("nan")},
            "length_penalty is nan; expected a number from",
        ),
        ("encoder_decoder", {"length_penalty": 400.0}, "length_penalty is 400.0; expected a number from"),
        ("encoder_decoder", {"max_new_tokens": 0}, "max_new_tokens must be"),
        ("encoder_decoder", {"source": []}, "a source is empty"),
    ],
)
def test_errors(kind, given, sentence):
    usual = {"source": [1], "prompt": [1], "beams": 2, "length_penalty": 1.0, "max_new_tokens": 2}
    with pytest.raises(ValueError, match=sentence):
        beam_search(alive(tiny(kind)), **usual | given)
