"""Multi-head latent attention: against DeepSeek in transformers, its two forms, and its cache."""

from functools import partial

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from model.attend import Mask, make_mask
from model.attention import MultiHeadLatentAttention
from model.cache import KVCache
from model.norm import RMSNorm
from model.position import Rope
from model.transformer import build_model
from tests.parts import alive, part, tiny, tokens

B, T = 2, 6
POS = torch.arange(T)[None]
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10}


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomize(module):
    module = module.double().eval()
    for i, parameter in enumerate(module.parameters()):
        parameter.data = randn(*parameter.shape, seed=i) / 4
    return module


def deinterleave(rows):
    """DeepSeek rotates the pairs (0, 1), (2, 3), ...; ours are i and i + R/2."""
    return torch.cat([rows[0::2], rows[1::2]])


def per_head(weight, *sizes):
    return weight.data.unflatten(0, (4, -1)).split(sizes, 1)


def queries(weight):
    pairs = zip(*per_head(weight, 6, 4), strict=True)
    return torch.cat([torch.cat([plain, deinterleave(rotary)]) for plain, rotary in pairs])


@pytest.mark.parametrize("q_lora_rank", [None, 12])
def test_equals_deepseek(q_lora_rank):
    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=q_lora_rank,
        rope_theta=10000.0,
        rope_interleave=True,
        attn_implementation="eager",
        **WIDTHS,
    )
    reference = randomize(deepseek.DeepseekV3Attention(config, layer_idx=0))
    options = {"q_lora_rank": q_lora_rank, "norm": partial(RMSNorm, eps=1e-6)}
    attention = MultiHeadLatentAttention(24, 4, **WIDTHS, **options).double().eval()
    if q_lora_rank is None:
        attention.query.weight.data = queries(reference.q_proj.weight)
    else:
        attention.query[0].weight.data = reference.q_a_proj.weight.data
        attention.query[1].weight.data = reference.q_a_layernorm.weight.data
        attention.query[2].weight.data = queries(reference.q_b_proj.weight)
    latent, rope = reference.kv_a_proj_with_mqa.weight.data.split([20, 4])
    key, value = per_head(reference.kv_b_proj.weight, 6, 10)
    attention.kv_down.weight.data = latent
    attention.k_rope.weight.data = deinterleave(rope)
    attention.latent_norm.weight.data = reference.kv_a_layernorm.weight.data
    attention.key.weight.data = key.flatten(0, 1)
    attention.value.weight.data = value.flatten(0, 1)
    attention.out.weight.data = reference.o_proj.weight.data

    x = randn(B, T, 24, seed=99)
    rotary = deepseek.DeepseekV3RotaryEmbedding(config)(x, POS)
    lookahead = make_mask(POS, POS, causal=True, sliding_window=T).bias.double()
    expected = reference(x, position_embeddings=rotary, attention_mask=lookahead)[0]
    rotate = Rope(4).rotary(x.float(), POS)  # the reference computes its angles in float32
    actual = attention(x, mask=Mask(causal=True), rotate=rotate)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("q_lora_rank", [None, 12])
def test_absorbed_equals_expanded(q_lora_rank, monkeypatch):
    attention = randomize(MultiHeadLatentAttention(24, 4, q_lora_rank=q_lora_rank, **WIDTHS))
    x = randn(B, T, 24, seed=99)
    rotate = Rope(4).rotary(x, POS)
    monkeypatch.setattr(attention, "absorbing_is_cheaper", lambda *_: True)
    absorbed = attention(x, mask=Mask(causal=True), rotate=rotate)
    monkeypatch.setattr(attention, "absorbing_is_cheaper", lambda *_: False)
    expanded = attention(x, mask=Mask(causal=True), rotate=rotate)
    torch.testing.assert_close(absorbed, expanded, rtol=0, atol=1e-10)


def test_decoding_uses_the_absorbed_form(monkeypatch):
    net = alive(tiny(attention=part("attention", "mla"), position=part("position", "rope")))
    forms = []
    for form in ("absorbed", "expanded"):
        method = getattr(MultiHeadLatentAttention, form)

        def spy(*args, form=form, method=method):
            forms.append(form)
            return method(*args)

        monkeypatch.setattr(MultiHeadLatentAttention, form, spy)
    caches = net.new_caches(9)
    for chunk in tokens(1, 9).split([8, 1], 1):
        net.hidden(chunk, caches=caches)
    assert forms == ["expanded", "expanded", "absorbed", "absorbed"]


def cached_numbers(kind, **changes):
    """Numbers per token and layer at the width of GPT-2."""
    attention = part("attention", kind, **changes)
    net = build_model(tiny(d_model=768, n_heads=12, n_layers=1, attention=attention), 23)
    caches = net.new_caches(8)
    net.hidden(tokens(1, 8), caches=caches)
    return sum(buffer.numel() for buffer in caches[0].self_attn.buffers) / 8


def test_cached_numbers_per_token():
    assert cached_numbers("mha") == 2 * 768
    assert cached_numbers("gqa", queries_per_kv=4) == 2 * 768 / 4
    assert cached_numbers("mqa") == 2 * 64
    assert cached_numbers("mla") == 4 * 64 + 32
    assert cached_numbers("mla", kv_lora_rank=128) == 128 + 32


def test_cache_holds_the_latent_and_the_rotary_key():
    attention = randomize(MultiHeadLatentAttention(24, 4, **WIDTHS))
    x = randn(B, T, 24, seed=99)
    rotate = Rope(4).rotary(x, POS)
    cache = KVCache(T)
    attention(x, mask=Mask(causal=True), rotate=rotate, cache=cache)
    [cached] = cache.read()
    assert torch.equal(cached[:, 0, :, :20], attention.latent_norm(attention.kv_down(x)))
    assert torch.equal(cached[:, :, :, 20:], rotate(attention.k_rope(x)[:, None]))
