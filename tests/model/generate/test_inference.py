"""On a CPU, weights and attention take other forms in decoding, with the same results."""

import pytest
import torch
import torch.nn as nn

from model.attend import Mask, attend
from model.cpu import PackedLinear, pack_linears
from tests.parts import ARCHITECTURES, alive, part, tiny, tokens


@pytest.mark.parametrize("attention", ["mha", "gqa", "mla"])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_weights_give_the_same_logits(kind, attention):
    net = alive(tiny(kind, attention=part("attention", attention)))
    inputs = {"tokens": tokens(3, 7)} | (
        {"source": tokens(3, 5)} if kind == "encoder_decoder" else {}
    )
    expected = net(**inputs)
    pack_linears(net.float())
    assert not any(type(module) is nn.Linear for module in net.modules())
    with torch.inference_mode():
        torch.testing.assert_close(net(**inputs).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_row_does_not_depend_on_the_others(dtype):
    linear = nn.Linear(100, 52).to(dtype).requires_grad_(False)
    packed, x = PackedLinear(linear), torch.randn(40, 100, dtype=dtype)
    assert torch.equal(packed.weight, linear.weight)
    assert all(torch.equal(packed(x[:n]), packed(x)[:n]) for n in (1, 2, 3, 16))


@pytest.mark.parametrize("groups", [8, 2])
def test_a_16_bit_query_attends_in_float32(groups):
    """However many rows are taken at once."""
    for rows, keys in ((5, 3), (5, 2000)):
        generator = torch.Generator().manual_seed(rows)
        q, k, v = (
            torch.randn(rows, heads, length, 32, generator=generator).bfloat16()
            for heads, length in ((8, 1), (groups, keys), (groups, keys))
        )
        hidden = torch.rand(rows, 1, 1, keys, generator=generator) < 0.3
        for bias in (None, hidden * -9.0, hidden[:1] * -9.0):
            exact = attend(q.float(), k.float(), v.float(), Mask(bias))
            assert torch.equal(attend(q, k, v, Mask(bias)), exact.bfloat16())
