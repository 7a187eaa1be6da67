"""Recorded weights: those of one forward pass, layer by layer, whatever the attention; nothing else moves."""

from inspect import getsource

import pytest
import torch

import model.attend
from model.attend import record_attention
from model.attention import ATTENTIONS
from tests.parts import alive, names, part, tiny, tokens


def kind_of(name):
    return part("attention", name)["kind"]


# an attention that looks up in a way of its own, such as the README's, has its weights to itself
KINDS = [
    name
    for name in names("attention")
    if "attend(" in getsource(getattr(ATTENTIONS[kind_of(name)], "func", ATTENTIONS[kind_of(name)]).look_up)
]


def fused(monkeypatch):
    monkeypatch.setattr(model.attend, "plain_is_faster", lambda q, k, v: False)


def each_row_sums_to_one(maps):
    for weights in maps:
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@torch.no_grad()
@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("attention", KINDS)
def test_a_decoder(attention, position, monkeypatch):
    net = alive(tiny(attention=part("attention", attention), position=part("position", position)))
    fused(monkeypatch)
    text = tokens(2, 9)
    expected = net(text)
    with record_attention() as maps:
        logits = net(text)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    assert [tuple(weights.shape) for weights in maps] == [(2, 4, 9, 9)] * 2
    each_row_sums_to_one(maps)
    assert all((weights.triu(1) == 0).all() for weights in maps)
    assert torch.equal(net(text), expected) and len(maps) == 2, "closed, nothing is recorded any more"


@torch.no_grad()
def test_the_weights_are_those_of_the_fused_kernel(monkeypatch):
    """With the unit vectors for values, what the fused kernel returns are its weights."""
    q, k = (torch.randn(2, 4, 9, 9, dtype=torch.float64) for _ in range(2))
    values = torch.eye(9, dtype=torch.float64).expand(2, 4, -1, -1)
    fused(monkeypatch)
    kernel = model.attend.attend(q, k, values, model.attend.Mask(causal=True))
    with record_attention() as maps:
        model.attend.attend(q, k, values, model.attend.Mask(causal=True))
    torch.testing.assert_close(maps[0], kernel, rtol=0, atol=1e-12)


@torch.no_grad()
def test_an_encoder_decoder():
    """The layers of the encoder, then each layer of the decoder: its own text, then the source."""
    net = alive(tiny("encoder_decoder"))
    with record_attention() as maps:
        net(tokens(1, 7), tokens(1, 5, seed=1))
    shapes = [(1, 2, 7, 7)] * 3 + [(1, 4, 5, 5), (1, 4, 5, 7)] * 2
    assert [tuple(weights.shape) for weights in maps] == shapes
    each_row_sums_to_one(maps)


def test_records_close_with_an_error():
    with pytest.raises(ZeroDivisionError), record_attention():
        raise ZeroDivisionError
    assert model.attend.RECORDS == []
