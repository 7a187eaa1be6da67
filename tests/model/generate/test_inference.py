"""On a CPU, weights and attention take other forms in decoding, with the same results."""

import pytest
import torch
import torch.nn as nn

from model.block import blocks_of
from model.inference import PackedLinear, prepare
from model.linear import Part, project
from tests.parts import ARCHITECTURES, alive, part, tiny


@pytest.mark.parametrize(("attention", "n_merged"), [("gqa", 2), ("mla", 1)])
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


@pytest.mark.parametrize("dtype", PACKED)
def test_a_packed_row_does_not_depend_on_the_others(dtype):
    linear = nn.Linear(100, 52).to(dtype).requires_grad_(False)
    packed = PackedLinear(linear)
    assert torch.equal(packed.weight, linear.weight)
    x = torch.randn(40, 100, dtype=dtype)
    for n in (1, 2, 3, 16):
        assert torch.equal(packed(x[:n]), packed(x)[:n])


def test_maps_are_merged_where_a_class_uses_one_of_them():
    """As an attention of one's own might."""
    net = alive(tiny(attention=part("attention", "mha")))
    x = torch.randn(2, 3, 32, dtype=torch.float64)
    attention = net.stack.blocks[0].attention
    expected = [attention.value(x), attention.query(x)]
    prepare(net)
    torch.testing.assert_close([attention.value(x), attention.query(x)], expected)
    torch.testing.assert_close([*project(x, attention.value, attention.query)], expected)
