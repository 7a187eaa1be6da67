"""Blocks against their formulas. (Embeddings, heads, norms, feed-forward
networks and blocks without cross-attention are compared with transformers in hub/.)"""

import pytest
import torch

from model.bigrams import Bigrams
from model.block import AttentionContext
from model.blocks import BLOCKS
from model.feedforward import FFNS
from model.norm import LayerNorm
from tests.model.helpers import assert_same, randn
from tests.parts import randomize


def test_feedforward_width():
    """341.3 before rounding. (That it is to the nearest multiple is in test_golden.py.)"""
    assert FFNS["swiglu"](128, expansion=8 / 3, multiple_of=32).d_ff == 352


class Map(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.register_buffer("weight", randn(8, 8, seed=seed))

    def forward(self, x, *_, mask=None, rotate=None, cache=None):
        return x @ self.weight


@pytest.mark.parametrize("kind", BLOCKS)
def test_norms_and_dropout(kind):
    """Three linear maps in a block, so that only sums and norms matter; no two norms are alike."""
    parts = {"attention": Map(1), "cross": Map(2), "ffn": Map(3)}
    block = randomize(BLOCKS[kind](**parts, norm=lambda: LayerNorm(8)).double())
    x = expected = randn(2, 3, 8)
    for name in ("attention", "cross", "ffn"):
        layer = getattr(block, name)
        norm = getattr(block, f"{name}_norm")
        if kind == "post":
            expected = norm(expected + layer(expected))
        elif kind == "olmo2":
            expected = expected + norm(layer(expected))
        elif kind == "sandwich":
            added_norm = getattr(block, f"{name}_added_norm")
            expected = expected + added_norm(layer(norm(expected)))
        else:
            is_parallel = kind.startswith("parallel")
            expected = expected + layer(norm(x if is_parallel else expected))
    context = AttentionContext(mask=None, memory=x)
    assert_same(block(x, context), expected)
    block.train().drop.p = 1.0  # of the output of each sub-layer
    normed = block.ffn_norm(block.cross_norm(block.attention_norm(x)))
    assert_same(block(x, context), normed if kind == "post" else x)


def test_bigrams():
    """Each token also reads those before it. (Documents are in test_documents.py.)"""
    slots = torch.arange(6)
    inputs = torch.tensor([[5, 7] * 3]), slots, slots[None], None
    x = randn(1, 6, 8)
    bigrams = randomize(Bigrams(16, 8).double())
    [pairs] = bigrams(x * 0, *inputs)
    assert torch.equal(pairs[1], pairs[3]) and not torch.equal(pairs[0], pairs[2])
    expected = x + pairs
    for lag, weight in enumerate(bigrams.weights, 1):
        expected[:, lag:] += weight * x[:, :-lag]
    assert_same(bigrams(x, *inputs), expected)
