"""Beam search: with enough beams it is exhaustive, with one it is greedy."""

from itertools import product

import pytest
import torch

from model.generate.beams import Hypothesis, beam_search, can_still_win
from model.generate.decode import generate
from tests.model.generate.test_decode import SOURCES, collect, lively
from tests.parts import alive, names, part, tiny

SMALL, END = 6, 5  # size of a vocabulary that can be enumerated, and its last id


@torch.no_grad()
def exhaustive_search(net, source, length_penalty, max_length):
    """The best of all sequences, each scored by one forward pass without a cache."""
    rows = [[*row, END] for n in range(max_length) for row in product(range(END), repeat=n)]
    rows += [list(row) for row in product(range(END), repeat=max_length)]
    hypotheses = []
    for ids in rows:
        logprobs = net(torch.tensor([source]), torch.tensor([[1, *ids[:-1]]]))[0].log_softmax(-1)
        hypotheses.append(Hypothesis(ids, [logprobs[t, i].item() for t, i in enumerate(ids)]))
    return max(hypotheses, key=lambda h: sum(h.logprobs) / len(h.ids) ** length_penalty)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("position", ["learned", "rope", "relative"])
def test_wide_beams_find_the_best(position, length_penalty):
    changes = {"norm": part("norm", "rmsnorm_no_weight"), "position": part("position", position)}
    net, source = alive(tiny("encoder_decoder", **changes), vocabulary=SMALL), [1, 4, 2]
    expected = exhaustive_search(net, source, length_penalty, max_length=3)
    options = {"length_penalty": length_penalty, "max_new_tokens": 3, "stop": END}
    best = beam_search(net, source, [1], beams=SMALL**3, **options)  # enough for every prefix
    assert best.ids == expected.ids
    assert best.logprobs == pytest.approx(expected.logprobs, abs=1e-10)


@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("source", SOURCES)
def test_one_beam_is_greedy(source, position):
    net = lively("encoder_decoder", position=part("position", position))
    [greedy] = collect(generate(net, [[1]], sources=[source], max_new_tokens=20, stop=3))  # past the context
    best = beam_search(net, source, [1], beams=1, length_penalty=0.0, max_new_tokens=20, stop=3)
    assert best.ids == greedy


@torch.no_grad()
def test_logprobs_are_those_of_a_forward_pass():
    """Beams are reordered on the way, and every cache with them."""
    net = lively("encoder_decoder", attention=part("attention", "mla"), position=part("position", "rope"))
    for source in SOURCES:
        best = beam_search(net, source, [1], beams=4, length_penalty=1.0, max_new_tokens=12)
        row = torch.tensor([[1, *best.ids]])
        logprobs = net(torch.tensor([source]), row[:, :-1])[0].log_softmax(-1)
        expected = logprobs.gather(-1, row[0, 1:, None])[:, 0].tolist()
        assert best.logprobs == pytest.approx(expected, abs=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("math_kernel", [True, False])
def test_past_the_context_length(math_kernel, monkeypatch):
    """The beams that remain are prefilled again, each with its own newer half."""
    monkeypatch.setattr("model.attend.prefer_math_kernel", lambda q, k, v: math_kernel)
    net = lively("encoder_decoder")
    best = beam_search(net, SOURCES[0], [1], beams=4, length_penalty=1.0, max_new_tokens=24)
    row, expected = [1], []
    for i in best.ids:
        row = row[-8:] if len(row) > 16 else row
        logprobs = net(torch.tensor([SOURCES[0]]), torch.tensor([row]))[0, -1].log_softmax(-1)
        expected.append(logprobs[i].item())
        row = [*row, i]
    assert best.logprobs == pytest.approx(expected, abs=1e-10) and len(best.ids) == 24


def test_where_length_is_favored_the_longest_continuation_counts():
    active, best = Hypothesis([1], [-2.0]), Hypothesis([1, END], [-0.5, -0.5])
    assert can_still_win(active, best, 1.0, 10) and not can_still_win(active, best, 1.0, 3)
    assert not can_still_win(active, best, 0.0, 10)
    assert can_still_win(Hypothesis([1], [-0.6]), best, -1.0, 10)  # -1.2 at once against -2


def test_more_beams_are_not_worse():
    net, options = lively("encoder_decoder"), {"length_penalty": 0.0, "max_new_tokens": 8}
    sums = [sum(beam_search(net, SOURCES[0], [1], beams=n, **options).logprobs) for n in (1, 4, 16)]
    assert sums == sorted(sums) and sums[0] < sums[-1]


def test_a_source_is_encoded_once():
    net, calls = lively("encoder_decoder"), []
    net.encoder.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[:2]))
    beam_search(net, SOURCES[0], [1], beams=4, length_penalty=1.0, max_new_tokens=8)
    assert calls == [(1, 7)]


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("decoder", {}, "beam search needs an encoder_decoder; this model is a decoder"),
        ("encoder_decoder", {"beams": 0}, "beams is 0; expected an integer at least 1 and at most 1,000"),
        ("encoder_decoder", {"beams": 2.5}, "beams is 2.5; expected"),
        ("encoder_decoder", {"length_penalty": float("nan")}, "length_penalty is nan; expected a number"),
        ("encoder_decoder", {"length_penalty": 400.0}, "length_penalty is 400.0; expected a number"),
        ("encoder_decoder", {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ("encoder_decoder", {"source": []}, "a source has 0 tokens"),
    ],
)
def test_errors(kind, options, sentence):
    usual = {"source": [1], "prompt": [1], "beams": 2, "length_penalty": 1.0, "max_new_tokens": 2}
    with pytest.raises(ValueError, match=sentence):
        beam_search(alive(tiny(kind)), **usual | options)
