"""Each position encoding against its formula or a reference, and its properties."""

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from model.position import Rope
from model.positions import Alibi, Sinusoidal
from tests.parts import alive, refused, tiny, tokens

POS = torch.arange(12)[None]


def test_rope_angles_stay_exact_in_bfloat16():
    """1001 is not a bfloat16 number; an angle computed in it would be off by radians."""
    x = torch.ones(1, 1, 1, 8)
    pos = torch.tensor([[1001]])
    exact = Rope(8).rotary(x, pos)(x)
    rough = Rope(8).bfloat16().rotary(x.bfloat16(), pos)(x.bfloat16())
    torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.01)


def test_sinusoidal_equals_its_formula():
    """Its other layout is compared with Marian's in hub/."""
    zeros = torch.zeros(1, 12, 8, dtype=torch.float64)
    x = Sinusoidal(8).embed(zeros, POS)
    for pos in range(12):
        angles = [pos / 10000 ** (2 * i / 8) for i in range(4)]
        expected = [wave(angle) for angle in angles for wave in (math.sin, math.cos)]
        assert x[0, pos].tolist() == pytest.approx(expected, abs=1e-12)


def test_alibi_equals_that_of_bloom():
    """Whose bias of a key is the same for all queries: the softmax does not see the difference."""
    square = Alibi(6).bias(POS, POS)
    assert torch.equal(square, square.mT)
    theirs = build_alibi_tensor(torch.ones(1, 12), 6, torch.float32)
    lower = torch.tril(square[0] - square[0, :, :, :1])
    assert torch.allclose(lower, torch.tril(theirs.expand(6, 12, 12)), atol=1e-6)


def test_learned_positions_end_at_the_context_length():
    net = alive(tiny())
    message = "17 positions, but model.context_length is 16"
    with refused(message):
        net(tokens(1, 17))
    caches = net.new_caches(32)
    net(tokens(1, 16), caches=caches)
    with refused(message):
        net(tokens(1, 1), caches=caches)
