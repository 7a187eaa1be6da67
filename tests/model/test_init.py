"""Weight initialization: the standard deviations of each scheme, and that only the seed decides."""

import math

import pytest
import torch

from model.transformer import build_model
from tests.parts import part, tiny

WIDE = {"d_model": 256, "n_heads": 4, "n_layers": 3}
FAN_IN = 1 / 16
HALF = 1 / 32
XAVIER = math.sqrt(2 / 512)
DEPTH = 0.02 / math.sqrt(2 * 3)


def built(kind="decoder", **changes):
    return build_model(tiny(kind, **WIDE, **changes), 500)


def std(weight):
    return pytest.approx(weight.std().item(), rel=0.05)


@pytest.mark.parametrize(
    "scheme, embedding, tied, hidden, out, head",
    [
        ("gpt2", 0.02, 0.02, 0.02, DEPTH, 0.02),
        ("bert", 0.02, 0.02, 0.02, 0.02, 0.02),
        ("t5", 1.0, FAN_IN, FAN_IN, FAN_IN, FAN_IN),
        ("vaswani", FAN_IN, FAN_IN, XAVIER, XAVIER, FAN_IN),
        ("modern", 1.0, 0.02, HALF, 0.0, 0.0),
    ],
)
def test_the_table(scheme, embedding, tied, hidden, out, head):
    """With a separate head, a tied head, and a tied head that scales its input."""
    net = built(init=scheme, head={}, ffn=part("ffn", "gelu", d_ff=256, expansion=None))
    block = net.stack.blocks[1]
    assert std(net.head.map.weight) == head
    assert std(block.attention.key.weight) == hidden
    assert std(block.attention.out.weight) == out
    assert std(block.ffn.out.weight) == out
    shared = {"tie_weights": True}
    scaled = shared | {"scale_by_inv_sqrt_d": True}
    for options, expected in (({}, embedding), (shared, tied), (scaled, embedding)):
        net = built(init=scheme, head=options)
        assert std(net.embedding.table.weight) == expected


def test_cross_attention_counts_as_a_residual_write():
    net = built("encoder_decoder")
    assert std(net.decoder.blocks[0].cross.out.weight) == 0.02 / math.sqrt(3 * 3)
    assert std(net.encoder.blocks[0].ffn.out.weight) == 0.02 / math.sqrt(2 * 3)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_initial_scores_do_not_depend_on_the_scale(scale):
    net = built(init="t5", attention=part("attention", "mha_nobias", scale=scale))
    attention = net.stack.blocks[0].attention
    assert std(attention.query.weight * attention.scale) == FAN_IN / 8


def test_only_the_tied_embedding_counts_as_tied():
    net = built("encoder_decoder", init="modern", head={"tie_weights": True})
    assert std(net.embedding.table.weight) == 0.02
    assert std(net.source_embedding.table.weight) == 1.0


def test_only_the_seed_decides():
    """And the global random state stays as it is."""
    nets = []
    for seed in (7, 7, 8):
        torch.randn(100)
        state = torch.get_rng_state()
        nets.append(build_model(tiny(), 23, seed).parameters())
        assert torch.equal(torch.get_rng_state(), state)
    for first, again, other in zip(*nets, strict=True):
        assert torch.equal(first, again)
        assert torch.equal(first, other) == (first.ndim == 1)
