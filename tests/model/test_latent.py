"""Multi-head latent attention: which of its forms is used, and its cache.

That both give the same result is in test_grid.py, where decoding equals a whole forward pass.
"""

import torch

from model.attend import Mask
from model.attention import MultiHeadLatentAttention
from model.cache import KVCache
from model.position import Rope
from tests.model.helpers import randn, randomize
from tests.parts import alive, part, tiny, tokens

B, T = 2, 6
POS = torch.arange(T)[None]
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10}


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


def test_cache_holds_the_latent_and_the_rotary_key():
    attention = randomize(MultiHeadLatentAttention(24, 4, **WIDTHS))
    x = randn(B, T, 24, seed=99)
    rotate = Rope(4).rotary(x, POS)
    cache = KVCache(T)
    attention(x, mask=Mask(causal=True), rotate=rotate, cache=cache)
    [cached] = cache.read()
    assert torch.equal(cached[:, 0, :, :20], attention.latent_norm(attention.kv_down(x)))
    assert torch.equal(cached[:, :, :, 20:], rotate(attention.k_rope(x)[:, None]))
