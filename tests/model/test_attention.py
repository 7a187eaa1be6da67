"""Multi-head attention, written out head by head, and each option. (Its biases are compared with
transformers in hub/; a worked example is in model/README.md.)"""

from functools import partial

import pytest
import torch
import transformers as hf
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from model.attend import Mask, attend, attention_weights
from model.attention import ATTENTIONS, Attention
from model.cross import CrossAttention
from model.masks import make_mask
from model.mla import MultiHeadLatentAttention
from model.norm import RMSNorm
from model.position import Rope
from tests.model.helpers import assert_same, randn
from tests.parts import alive, part, tiny, tokens

B, T, S = 2, 5, 7
POS = torch.arange(T)[None]
CAUSAL = Mask(causal=True)


def test_all_widths_are_independent():
    widths = {"head_dim": 5, "v_head_dim": 3}
    attention = CrossAttention(24, 4, (10, 14), queries_per_kv=2, **widths).double()
    x = randn(B, T, 24)
    keys = randn(B, S, 10, seed=1)
    values = randn(B, S, 14, seed=2)
    q_weights = attention.query.weight.split(5)
    k_weights = attention.key.weight.split(5)
    v_weights = attention.value.weight.split(3)
    heads = []
    for head in range(4):
        q = x @ q_weights[head].T
        k = keys @ k_weights[head // 2].T
        v = values @ v_weights[head // 2].T
        heads.append((q @ k.mT / 5**0.5).softmax(-1) @ v)
    expected = torch.cat(heads, -1) @ attention.out.weight.T
    assert_same(attention(x, keys, values, mask=Mask()), expected)

    # of a wider memory, its first and its last channels
    assert_same(attention(x, torch.cat([keys, values], -1), mask=Mask()), expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fused_kernel_equals_math_kernel(groups, monkeypatch):
    """And both are the mean of the values with weights that sum to one."""
    q = randn(B, 4, T, 6)
    k = randn(B, groups, T, 6, seed=1)
    v = randn(B, groups, T, 3, seed=2)
    visible = torch.arange(T) >= torch.tensor([[0], [2]])
    bias = randn(1, 4, T, T, seed=3)
    options = {"sliding_window": 2, "visible": visible, "bias": bias}
    windows = [make_mask(POS, POS, causal=causal, **options) for causal in (True, False)]
    for mask in (Mask(), CAUSAL, Mask(bias), *windows):
        weights = attention_weights(q, k, mask, scale=0.3)
        assert_same(weights.sum(-1), torch.ones(B, 4, T, dtype=torch.float64))
        expected = weights @ v.repeat_interleave(4 // groups, 1)
        newest = Mask(None if mask.bias is None else mask.bias[:, :, -1:])
        for math, groups_fit in ((True, True), (False, True), (False, False)):
            monkeypatch.setattr("model.attend.prefers_matmuls_on_cpu", lambda *_, math=math: math)
            monkeypatch.setattr("model.attend.takes_groups", lambda *_, fit=groups_fit: fit)
            assert_same(attend(q, k, v, mask, scale=0.3), expected)
            assert_same(attend(q[:, :, -1:], k, v, newest, scale=0.3), expected[:, :, -1:])


@pytest.mark.parametrize("math", [True, False])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_dropout_only_in_training(kind, math, monkeypatch):
    monkeypatch.setattr("model.attend.prefers_matmuls_on_cpu", lambda *_: math)
    torch.manual_seed(0)
    attention = ATTENTIONS[kind](24, 4, dropout=0.5).double()
    x = randn(B, T, 24)
    for is_training in (True, False):
        attention.train(is_training)
        again = [attention(x, mask=Mask()) for _ in range(2)]
        assert torch.equal(*again) != is_training


def test_all_layers_share_a_mask_in_the_dtype_of_the_scores(monkeypatch):
    """The three of an encoder-decoder."""
    net = alive(tiny("encoder_decoder", position=part("position", "alibi"))).float()
    biases = []
    monkeypatch.setattr(Attention, "attend", lambda _, q, k, v, mask: biases.append(mask.bias) or q)
    with torch.autocast("cpu", torch.bfloat16):
        net(tokens(2, 5), tokens(2, 5), source_visible=torch.arange(5)[None] < 4)
    assert all(bias.dtype == torch.bfloat16 for bias in biases)
    assert len({id(bias) for bias in biases}) == 3


def test_mla_is_that_of_deepseek():
    """With its weights, which it packs in pairs."""
    sizes = {"qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "v_head_dim": 6, "kv_lora_rank": 16}
    sizes |= {"q_lora_rank": 20}
    names = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = hf.DeepseekV3Config(
        **sizes, **names, rope_interleave=False, attn_implementation="eager"
    )
    theirs = DeepseekV3Attention(config, 0).double()
    ours = MultiHeadLatentAttention(24, 4, **sizes, norm=partial(RMSNorm, eps=1e-6)).double()
    state = theirs.state_dict()
    queries = ["q_a_proj", "q_a_layernorm", "q_b_proj"]
    down, rope = state["kv_a_proj_with_mqa.weight"].split([16, 4])
    pairs = state["kv_b_proj.weight"].unflatten(0, (4, -1)).split([10, 6], 1)
    found = [*(state[f"{name}.weight"] for name in queries), down]
    found += [state["kv_a_layernorm.weight"], rope, *(part.flatten(0, 1) for part in pairs)]
    found.append(state["o_proj.weight"])
    ours.load_state_dict(dict(zip(ours.state_dict(), found, strict=True)))

    x = randn(B, T, 24)
    position = DeepseekV3RotaryEmbedding(config)(x, POS)
    bias = torch.full((T, T), -torch.inf).triu(1).double()[None, None]
    expected, _ = theirs(x, position, bias)
    found = ours(x, mask=CAUSAL, rotate=Rope(4).rotary(x, POS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # its angles are in float32
