"""Latent attention: against DeepSeek's as transformers has it, absorbed against expanded, and what it
saves."""

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from model.attend import Mask, make_mask
from model.attention import MultiHeadLatentAttention
from model.cache import KVCache
from model.norm import RMSNorm
from model.position import Rope
from tests.parts import alive, part, tiny, tokens

B, T = 2, 6
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 6, "rotary_dim": 4, "v_head_dim": 10}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(**options):
    attention = MultiHeadLatentAttention(24, 4, **WIDTHS, **options).double().eval()
    for i, parameter in enumerate(attention.parameters()):
        parameter.data = randn(*parameter.shape, seed=i) / 4
    return attention


def halves(rows):
    """DeepSeek turns neighbours (0,1), (2,3), ...; ours turns i and i + R/2: the same channels in another
    order."""
    return torch.cat([rows[0::2], rows[1::2]])


@pytest.mark.parametrize("q_lora_rank", [None, 12])
def test_equals_deepseek(q_lora_rank):
    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=20,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=10,
        rope_theta=10000.0,
        rope_interleave=True,
        attn_implementation="eager",
    )
    theirs = DeepseekV3Attention(config, layer_idx=0).double().eval()
    for i, parameter in enumerate(theirs.parameters()):
        parameter.data = randn(*parameter.shape, seed=i) / 4
    ours = MultiHeadLatentAttention(
        24, 4, q_lora_rank=q_lora_rank, **WIDTHS, norm=lambda width: RMSNorm(width, eps=1e-6)
    )
    ours = ours.double().eval()

    def per_head(weight, *sizes):
        return weight.data.unflatten(0, (4, -1)).split(sizes, 1)

    def queries(weight):
        return torch.cat([torch.cat([p, halves(r)]) for p, r in zip(*per_head(weight, 6, 4), strict=True)])

    if q_lora_rank is None:
        ours.query.weight.data = queries(theirs.q_proj.weight)
    else:
        ours.query[0].weight.data = theirs.q_a_proj.weight.data
        ours.query[1].weight.data = theirs.q_a_layernorm.weight.data
        ours.query[2].weight.data = queries(theirs.q_b_proj.weight)
    latent, rope = theirs.kv_a_proj_with_mqa.weight.data.split([20, 4])
    ours.latent.weight.data, ours.k_rope.weight.data = latent, halves(rope)
    ours.latent_norm.weight.data = theirs.kv_a_layernorm.weight.data
    key, value = per_head(theirs.kv_b_proj.weight, 6, 10)
    ours.key.weight.data, ours.value.weight.data = key.flatten(0, 1), value.flatten(0, 1)
    ours.out.weight.data = theirs.o_proj.weight.data

    x, pos = randn(B, T, 24, seed=99), torch.arange(T)[None]
    rotary = DeepseekV3RotaryEmbedding(config)(x, pos)
    lookahead = make_mask(pos, pos, causal=True, sliding_window=T).bias.double()
    expected = theirs(x, position_embeddings=rotary, attention_mask=lookahead)[0]
    # the reference makes its angles in float32
    rotate = Rope(4).rotary(x.float(), pos)
    torch.testing.assert_close(ours(x, mask=Mask(causal=True), rotate=rotate), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("q_lora_rank", [None, 12])
def test_absorbed_is_expanded(q_lora_rank, monkeypatch):
    attention, x = drawn(q_lora_rank=q_lora_rank), randn(B, T, 24, seed=99)
    outcomes = []
    for absorb in (True, False):
        monkeypatch.setattr(
            MultiHeadLatentAttention, "absorbing_is_cheaper", lambda *a, absorb=absorb: absorb
        )
        outcomes.append(attention(x, mask=Mask(causal=True), rotate=Rope(4).rotary(x, torch.arange(T)[None])))
    torch.testing.assert_close(*outcomes, rtol=0, atol=1e-10)


def test_a_step_is_absorbed_and_a_whole_text_expanded():
    attention = MultiHeadLatentAttention(512, 8)
    remembered = torch.empty(1, 1, 300, attention.kv_lora_rank + attention.rotary_dim)
    assert attention.absorbing_is_cheaper(torch.empty(1, 1, 512), remembered)
    assert not attention.absorbing_is_cheaper(torch.empty(1, 300, 512), remembered)


def test_decoding_takes_the_absorbed_form(monkeypatch):
    net, taken = alive(tiny(attention=part("attention", "mla"), position=part("position", "rope"))), []
    for form in ("absorbed", "expanded"):
        original = getattr(MultiHeadLatentAttention, form)
        monkeypatch.setattr(
            MultiHeadLatentAttention, form, lambda *a, o=original, f=form: taken.append(f) or o(*a)
        )
    caches, text = net.new_caches(9), tokens(1, 9)
    net.hidden(text[:, :8], caches=caches)
    net.hidden(text[:, 8:], caches=caches)
    assert taken == ["expanded", "expanded", "absorbed", "absorbed"]


def cached_bytes(kind, **changes):
    """What one token costs the cache of one layer, in float32, at GPT-2's size."""
    config = tiny(d_model=768, n_heads=12, attention=part("attention", kind, **changes))
    net = alive(config).float()
    caches = net.new_caches(8)
    net.hidden(tokens(1, 8), caches=caches)
    return sum(buffer.nbytes for buffer in caches[0].own.buffers) / 8


def test_bytes_of_cache_per_token():
    """Keys and values of each head; latent attention keeps one latent and one rotary key for all heads."""
    assert cached_bytes("mha") == 4 * 2 * 768
    assert cached_bytes("gqa", queries_per_kv=4) == 4 * 2 * 768 / 4
    assert cached_bytes("mqa") == 4 * 2 * 64
    assert cached_bytes("mla") == 4 * (4 * 64 + 32)
    assert cached_bytes("mla", kv_lora_rank=128) < cached_bytes("gqa", queries_per_kv=4)


def test_the_cache_holds_latent_and_rotary_key_and_nothing_else():
    attention, x, cache = drawn(), randn(B, T, 24, seed=99), KVCache(T)
    rotate = Rope(4).rotary(x, torch.arange(T)[None])
    attention(x, mask=Mask(causal=True), rotate=rotate, cache=cache)
    [remembered] = cache.read()
    assert torch.equal(remembered[:, 0, :, :20], attention.latent_norm(attention.kv_down(x)))
    assert torch.equal(remembered[:, :, :, 20:], rotate(attention.k_rope(x)[:, None]))
