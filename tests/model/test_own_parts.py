"""What a part of your own is told and keeps. (The grids test all of its uses.)"""

import pytest
import torch
from torch import nn
from torch.distributed.utils import _apply_to_tensors as fsdp_casts

from model.attention import ATTENTIONS, Attention, MultiHeadAttention, merge, split
from model.transformer import build_model
from tests.parts import alive, part, tiny, tokens
from training.compile import recompute_blocks


class MeanValues(MultiHeadAttention):
    """The values of a layer are the mean of its own and those of the layer before."""

    def forward(self, x, *, mask, rotate=None, cache=None, shared, tokens):
        value = self.value(x)
        shared["values"] = (value + shared.get("values", value)) / 2
        shared.setdefault("tokens", []).append(tokens)
        k, v = self.keys_and_values(self.key(x), shared["values"], rotate, cache)
        q = split(self.query(x), self.n_heads)
        return self.out(merge(self.attend(q, k, v, mask)))


@pytest.fixture
def net(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mean", MeanValues)
    return alive(tiny(attention={"kind": "mean"}, n_layers=4))


def gradients(net, hidden):
    total = hidden(tokens(2, 7)).square().sum()
    return torch.autograd.grad(total, list(net.parameters())[:-1])  # without the head


def test_layers_share_what_is_new_in_each_pass(net):
    seen = []
    net.stack.blocks[3].register_forward_pre_hook(lambda block, args: seen.append(args[1].shared))
    texts = [tokens(1, 5, seed=seed) for seed in (1, 2)]
    for text in texts:
        net(text)
    for text, shared in zip(texts, seen, strict=True):
        assert len(shared["tokens"]) == 4
        assert all(given is text for given in shared["tokens"])
        assert fsdp_casts(lambda tensor: tensor.half(), {"shared": shared})["shared"] is shared


@pytest.mark.parametrize("recompute", [False, True])
def test_shared_values_compile_to_one_graph(net, recompute):
    expected = gradients(net, net.hidden)
    if recompute:
        recompute_blocks(net)
    compiled = torch.compile(net.hidden, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(net, compiled), expected, rtol=0, atol=1e-9)


def test_a_part_is_told_its_layer_and_its_reset_comes_after_the_scheme(monkeypatch):
    class Gated(MultiHeadAttention):
        def __init__(self, d_model: int, n_heads: int, layer: int, n_layers: int):
            super().__init__(d_model, n_heads)
            self.gate = nn.Linear(d_model, n_heads)
            self.depth = (1 + layer) / n_layers

        def reset(self):
            nn.init.constant_(self.gate.bias, self.depth)

    monkeypatch.setitem(ATTENTIONS, "own", Gated)
    blocks = build_model(tiny(attention={"kind": "own"}), 23).stack.blocks
    for block, depth in zip(blocks, (0.5, 1.0), strict=True):
        assert (block.attention.gate.bias == depth).all()


def refused(message, attention="mha", **settings):
    with pytest.raises(ValueError, match=message):
        build_model(tiny(attention={"kind": attention}, **settings), 23)


def test_a_part_without_sizes_needs_no_rotation(monkeypatch):
    class Bare(Attention):
        def __init__(self, d_model: int):
            super().__init__()
            self.out = nn.Linear(d_model, d_model)

        def forward(self, x, *, mask, rotate=None, cache=None):
            return self.out(x)

    monkeypatch.setitem(ATTENTIONS, "bare", Bare)
    alive(tiny(attention={"kind": "bare"}))(tokens(1, 5))
    refused("rope needs an even number above 0", "bare", position=part("position", "rope"))
    monkeypatch.setitem(ATTENTIONS, "other", lambda: nn.Identity())
    refused("Identity is no attention: let it inherit model.attention", "other")
    monkeypatch.setitem(ATTENTIONS, "self", MeanValues)
    refused("MeanValues is no cross", kind="encoder_decoder", cross_attention={"kind": "self"})
