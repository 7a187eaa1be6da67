"""Multi-head latent attention: against DeepSeek in transformers, both of its forms, and its cache."""

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


@pytest.mark.parametrize("q_lora_rank", [None, 12])
def test_equals_deepseek(q_lora_rank):
    sizes = {
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": q_lora_rank,
    }
    rope = {"rope_theta": 10000.0, "rope_interleave": True}
    config = DeepseekV3Config(**sizes, **WIDTHS, **rope, attn_implementation="eager")
    reference = randomize(deepseek.DeepseekV3Attention(config, layer_idx=0))
    options = {"q_lora_rank": q_lora_rank, "norm": partial(RMSNorm, eps=1e-6)}
    attention = MultiHeadLatentAttention(24, 4, **WIDTHS, **options).double().eval()

    def per_head(weight, *sizes):
        return weight.data.unflatten(0, (4, -1)).split(sizes, 1)

    def queries(weight):
        pairs = zip(*per_head(weight, 6, 4), strict=True)
        return torch.cat([torch.cat([plain, deinterleave(rotary)]) for plain, rotary in pairs])

    if q_lora_rank is None:
        attention.query.weight.data = queries(reference.q_proj.weight)
    else:
        attention.query[0].weight.data = reference.q_a_proj.weight.data
        attention.query[1].weight.data = reference.q_a_layernorm.weight.data
        attention.query[2].weight.data = queries(reference.q_b_proj.weight)
    latent, rope = reference.kv_a_proj_with_mqa.weight.data.split([20, 4])
    attention.kv_down.weight.data, attention.k_rope.weight.data = latent, deinterleave(rope)
    attention.latent_norm.weight.data = reference.kv_a_layernorm.weight.data
    key, value = per_head(reference.kv_b_proj.weight, 6, 10)
    attention.key.weight.data, attention.value.weight.data = key.flatten(0, 1), value.flatten(0, 1)
    attention.out.weight.data = reference.o_proj.weight.data

    x, pos = randn(B, T, 24, seed=99), torch.arange(T)[None]
    rotary = deepseek.DeepseekV3RotaryEmbedding(config)(x, pos)
    lookahead = make_mask(pos, pos, causal=True, sliding_window=T).bias.double()
    expected = reference(x, position_embeddings=rotary, attention_mask=lookahead)[0]
    rotate = Rope(4).rotary(x.float(), pos)  # the reference computes its angles in float32
    actual = attention(x, mask=Mask(causal=True), rotate=rotate)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("q_lora_rank", [None, 12])
def test_absorbed_equals_expanded(q_lora_rank, monkeypatch):
    attention = randomize(MultiHeadLatentAttention(24, 4, q_lora_rank=q_lora_rank, **WIDTHS))
    x, outcomes = randn(B, T, 24, seed=99), []
    for absorb in (True, False):
        monkeypatch.setattr(attention, "absorbing_is_cheaper", lambda *_, absorb=absorb: absorb)
        outcomes.append(
            attention(x, mask=Mask(causal=True), rotate=Rope(4).rotary(x, torch.arange(T)[None]))
        )
    torch.testing.assert_close(*outcomes, rtol=0, atol=1e-10)


def test_decoding_uses_the_absorbed_form(monkeypatch):
    net, forms = (
        alive(tiny(attention=part("attention", "mla"), position=part("position", "rope"))),
        [],
    )

    def spy(form, method, *args):
        forms.append(form)
        return method(*args)

    for attention in (block.attention for block in net.stack.blocks):
        for form in ("absorbed", "expanded"):
            monkeypatch.setattr(attention, form, partial(spy, form, getattr(attention, form)))
    caches, text = net.new_caches(9), tokens(1, 9)
    net.hidden(text[:, :8], caches=caches)
    net.hidden(text[:, 8:], caches=caches)
    assert forms == ["expanded", "expanded", "absorbed", "absorbed"]


def cached_bytes(kind, **changes):
    """Bytes per token and layer in float32 at the size of GPT-2."""
    net = build_model(
        tiny(d_model=768, n_heads=12, attention=part("attention", kind, **changes)), 23
    )
    caches = net.new_caches(8)
    net.hidden(tokens(1, 8), caches=caches)
    return sum(buffer.nbytes for buffer in caches[0].self_attn.buffers) / 8


def test_cache_bytes_per_token():
    assert cached_bytes("mha") == 4 * 2 * 768
    assert cached_bytes("gqa", queries_per_kv=4) == 4 * 2 * 768 / 4
    assert cached_bytes("mqa") == 4 * 2 * 64
    assert cached_bytes("mla") == 4 * (4 * 64 + 32)
    assert cached_bytes("mla", kv_lora_rank=128) < cached_bytes("gqa", queries_per_kv=4)


def test_cache_holds_the_latent_and_the_rotary_key():
    attention = randomize(MultiHeadLatentAttention(24, 4, **WIDTHS))
    x, cache = randn(B, T, 24, seed=99), KVCache(T)
    rotate = Rope(4).rotary(x, torch.arange(T)[None])
    attention(x, mask=Mask(causal=True), rotate=rotate, cache=cache)
    [cached] = cache.read()
    assert torch.equal(cached[:, 0, :, :20], attention.latent_norm(attention.kv_down(x)))
    assert torch.equal(cached[:, :, :, 20:], rotate(attention.k_rope(x)[:, None]))
