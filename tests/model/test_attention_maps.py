"""Attention maps: the weights of one forward pass, layer by layer; the model itself is not changed."""

import pytest
import torch

import model.attend
from model.attention import ATTENTIONS, Attention, MultiHeadAttention
from model.attention_maps import attention_maps
from model.shapes import main as draw_masks
from tests.parts import alive, names, part, tiny, tokens


def has_maps(name):
    """Whether an attention leaves the weights to `attend`; an added one may not."""
    constructor = ATTENTIONS[part("attention", name)["kind"]]
    return getattr(constructor, "func", constructor).attend is Attention.attend


def check_weights(maps):
    for layer in maps:
        assert layer.weights_HTS.shape[1:] == (len(layer.queries), len(layer.keys))
        assert (layer.weights_HTS >= 0).all()
        torch.testing.assert_close(
            layer.weights_HTS.sum(-1), torch.ones_like(layer.weights_HTS[..., 0])
        )


@torch.no_grad()
@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("attention", [name for name in names("attention") if has_maps(name)])
def test_decoder(attention, position, monkeypatch):
    net = alive(tiny(attention=part("attention", attention), position=part("position", position)))
    monkeypatch.setattr(model.attend, "prefer_math_kernel", lambda q, k, v: False)
    text = tokens(1, 9)
    expected, outputs = net(text), []
    hook = net.register_forward_hook(lambda module, inputs, logits: outputs.append(logits))
    maps = attention_maps(net, {"tokens": text[0].tolist()})
    hook.remove()
    assert torch.equal(outputs[0], expected) and torch.equal(net(text), expected), (
        "maps changed the logits"
    )
    assert [(layer.name, len(layer.weights_HTS)) for layer in maps] == [
        ("layer 1", 4),
        ("layer 2", 4),
    ]
    check_weights(maps)
    assert all((layer.weights_HTS.triu(1) == 0).all() for layer in maps)


def test_encoder_decoder():
    """The encoder's layers, then self-attention and cross-attention of each decoder layer."""
    source, target = [1, 2, 3, 4, 5, 6, 7], [3, 2, 1, 4, 5]
    maps = attention_maps(alive(tiny("encoder_decoder")), {"source": source, "tokens": target})
    encoder = [(f"encoder {i}", source, source) for i in (1, 2, 3)]
    decoder = [("decoder 1", target, target), ("decoder 1 to source", target, source)]
    decoder += [("decoder 2", target, target), ("decoder 2 to source", target, source)]
    assert [(layer.name, layer.queries, layer.keys) for layer in maps] == encoder + decoder
    check_weights(maps)


class OwnWeights(MultiHeadAttention):
    def attend(self, q_BHTD, k_BHSD, v_BHSE, mask):
        return mask.add_to(q_BHTD @ k_BHSD.mT).softmax(-1) @ v_BHSE


def test_attention_with_weights_of_its_own_is_rejected(monkeypatch, capsys):
    monkeypatch.setitem(ATTENTIONS, "mha", OwnWeights)
    net = alive(tiny())
    with pytest.raises(ValueError, match="this model's attention computes its weights itself"):
        attention_maps(net, {"tokens": [1, 2, 3]})
    draw_masks(["--mask", "attention=mha"])
    assert capsys.readouterr().out == "no tensor is named weights_BHTS\n"


def test_the_model_is_restored_after_an_error():
    net = alive(tiny())
    with pytest.raises(ValueError, match="17 positions"):
        attention_maps(net, {"tokens": [1] * 17})
    assert all("attend" not in vars(block.attention) for block in net.stack.blocks)
