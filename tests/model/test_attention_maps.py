"""Attention maps: the weights of one forward pass, layer by layer, which change nothing in it."""

import pytest
import torch

from model.attention import ATTENTIONS, MultiHeadAttention, attend
from model.attention_maps import recorded_weights
from tests.parts import alive, names, part, refused, tiny, tokens


@torch.no_grad()
def attention_maps(model, inputs):
    with recorded_weights(model) as weights:
        model(**inputs)
    return weights


def check_weights(maps):
    for weights_HTS in maps.values():
        assert (weights_HTS >= 0).all()
        torch.testing.assert_close(weights_HTS.sum(-1), torch.ones_like(weights_HTS[..., 0]))


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned", "rope", "alibi"])
@pytest.mark.parametrize("attention", names("attention"))
def test_decoder(attention, position, monkeypatch):
    """By the kernel that never holds the weights. (That logits do not change is in test_explain.py.)"""
    monkeypatch.setattr("model.attend.prefers_matmuls_on_cpu", lambda *_: False)
    net = alive(tiny(attention=part("attention", attention), position=part("position", position)))
    calls = []

    def keep(q, k, v, *args, **options):
        calls.append((v, attend(q, k, v, *args, **options)))
        return calls[-1][1]

    monkeypatch.setattr("model.attention.attend", keep)
    maps = attention_maps(net, {"tokens": tokens(9)[None]})
    assert [*maps] == ["layer 1", "layer 2"]
    check_weights(maps)
    for weights_HTS, (v, y) in zip(maps.values(), calls, strict=True):
        values = v[0].float().repeat_interleave(len(weights_HTS) // v.shape[1], 0)
        torch.testing.assert_close(weights_HTS @ values, y[0].float())
    assert all((weights_HTS.triu(1) == 0).all() for weights_HTS in maps.values())


def test_encoder_decoder():
    """The encoder's layers, then self-attention and cross-attention of each decoder layer."""
    inputs = {"source": torch.arange(7)[None], "tokens": torch.tensor([[3, 2, 1, 4, 5]])}
    maps = attention_maps(alive(tiny("encoder_decoder")), inputs)
    expected = {f"encoder layer {i}": (2, 7, 7) for i in (1, 2, 3)}
    for i in (1, 2):
        expected |= {f"decoder layer {i}": (4, 5, 5), f"decoder layer {i} cross": (4, 5, 7)}
    assert {name: weights_HTS.shape for name, weights_HTS in maps.items()} == expected
    check_weights(maps)


class OwnWeights(MultiHeadAttention):
    def attend(self, q_BHTD, k_BHSD, v_BHSE, mask):
        return mask.add_to(q_BHTD @ k_BHSD.mT).softmax(-1) @ v_BHSE


def test_attention_with_weights_of_its_own_is_rejected(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "own", OwnWeights)
    with refused("this model's attention overrides attend"):
        own = part("attention", "mha", kind="own")
        attention_maps(alive(tiny(attention=own)), {"tokens": tokens(3)[None]})
