"""On a CPU, weights and attention take other forms in decoding, with the same results."""

import pytest
import torch
import torch.nn as nn

from model.block import blocks_of
from model.inference import PackedLinear, prepare
from model.linear import Part, project
from tests.parts import ARCHITECTURES, alive, part, tiny


@pytest.mark.parametrize("attention, n_merged", [("gqa", 2), ("mla", 1)])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_maps_of_a_prepared_model_are_merged_and_packed(kind, attention, n_merged):
    """That it gives the same logits is in test_grid_in_use.py."""
    parts = {"attention": part("attention", attention), "ffn": part("ffn", "swiglu")}
    net = alive(tiny(kind, **parts))
    prepare(net.float())
    merged = {id(module.whole) for module in net.modules() if type(module) is Part}
    assert len(merged) == len(blocks_of(net)) * n_merged
    assert not any(type(module) is nn.Linear for module in net.modules())


PACKED = [torch.float32]
if torch.ops.mkldnn._is_mkldnn_bf16_supported():
    PACKED.append(torch.bfloat16)


@pytest.mark.parametrize("width", [52, 50_000])
@pytest.mark.parametrize("dtype", PACKED)
def test_a_packed_row_does_not_depend_on_the_others(dtype, width):
    linear = nn.Linear(100, width).to(dtype).requires_grad_(False)
    packed = PackedLinear(linear)
    assert torch.equal(packed.weight, linear.weight)
    x = torch.randn(40, 100, dtype=dtype)
    for n in (1, 2, 3, 16):
        assert torch.equal(packed(x[:n]), packed(x)[:n])


@pytest.mark.parametrize("bias", [True, False])
def test_an_attention_of_ones_own_may_use_one_of_the_merged_maps(bias):
    """Or its weights."""
    net = alive(tiny(attention=part("attention", "mha", bias=bias)))
    attention = net.stack.blocks[0].attention
    x = torch.randn(2, 3, 32, dtype=torch.float64)

    def uses():
        query, value = attention.query, attention.value
        return [value(x), *project(x, value, query), value.weight, value.bias]

    expected = uses()
    prepare(net)
    assert type(attention.value) is Part
    torch.testing.assert_close(uses(), expected)
