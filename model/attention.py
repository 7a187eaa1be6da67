"""Attention, softmax(q k' / sqrt(D)) v: compare the query of each position with the keys of all positions
that it may attend to, and average their values with the resulting weights. All kinds share the signature
attention(x, *, mask, rotate=None, cache=None)."""

from functools import partial
from typing import Annotated

import torch
import torch.nn as nn

from configs.registry import Count, Positive
from model.attend import attend
from model.kernels import project
from model.norm import RMSNorm


def split(packed, n_heads):
    """(B, T, H * D) -> (B, H, T, D)"""
    return packed.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge(heads):
    """(B, H, T, D) -> (B, T, H * D)"""
    return heads.transpose(1, 2).flatten(-2)


def default_head_dim(d_model, n_heads):
    if d_model % n_heads:
        raise ValueError(f"d_model ({d_model}) must be a multiple of n_heads ({n_heads})")
    return d_model // n_heads


class FullHeadNorm(nn.Module):
    """One norm over all heads of a position together."""

    def __init__(self, norm, n_heads):
        super().__init__()
        self.norm, self.n_heads = norm, n_heads

    def forward(self, heads):
        return split(self.norm(merge(heads)), self.n_heads)


def make_qk_norm(kind, norm, n_heads, head_dim):
    """Normalized queries and keys keep the softmax from saturating (arxiv.org/abs/2302.05442)."""
    if kind == "full":
        return FullHeadNorm(norm(n_heads * head_dim), n_heads)
    return norm(head_dim) if kind == "head" else nn.Identity()


class Attention(nn.Module):
    """Base of all kinds, which set n_heads, n_groups, rotary_dim, scale and dropout."""

    sliding_window = logit_softcap = None

    def attend(self, q_BHTD, k_BGSD, v_BGSE, mask):
        dropout = self.dropout if self.training else 0.0
        options = {"scale": self.scale, "logit_softcap": self.logit_softcap, "dropout": dropout}
        return attend(q_BHTD, k_BGSD, v_BGSE, mask, **options)


class MultiHeadAttention(Attention):
    """Multi-head attention (arxiv.org/abs/1706.03762), in which groups of `queries_per_kv` query heads (None:
    all) share one head of keys and values (arxiv.org/abs/2305.13245). All widths are independent: d_model of
    x, `memory` (input widths of the key and value projections, for cross-attention), and per head head_dim
    (queries and keys) and v_head_dim (values)."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        memory: tuple[int, int] | None = None,
        queries_per_kv: Count | None = 1,
        head_dim: Count | None = None,
        v_head_dim: Count | None = None,
        bias: bool = False,
        o_bias: bool = False,
        qk_norm: Annotated[str, ("none", "head", "full")] = "none",
        logit_softcap: Positive | None = None,
        sliding_window: Count | None = None,
        scale: Positive | None = None,
        norm=RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        if memory is not None and sliding_window is not None:
            raise ValueError("sliding_window does not apply to cross-attention: leave it null")
        queries_per_kv = queries_per_kv or n_heads
        if n_heads % queries_per_kv:
            raise ValueError(
                f"n_heads ({n_heads}) must be a multiple of queries_per_kv ({queries_per_kv})"
            )
        head_dim = head_dim or default_head_dim(d_model, n_heads)
        v_head_dim = v_head_dim or head_dim
        key_width, value_width = memory or (d_model, d_model)
        self.n_heads, self.n_groups = n_heads, n_heads // queries_per_kv
        self.head_dim, self.v_head_dim, self.rotary_dim = head_dim, v_head_dim, head_dim
        self.scale, self.dropout = scale or head_dim**-0.5, dropout
        self.query_size = head_dim**-0.5 / self.scale  # T5's scale of 1 needs smaller queries
        self.logit_softcap, self.sliding_window = logit_softcap, sliding_window
        self.query = nn.Linear(d_model, n_heads * head_dim, bias=bias)
        self.key = nn.Linear(key_width, self.n_groups * head_dim, bias=bias)
        self.value = nn.Linear(value_width, self.n_groups * v_head_dim, bias=bias)
        self.query_norm = make_qk_norm(qk_norm, norm, n_heads, head_dim)
        self.key_norm = make_qk_norm(qk_norm, norm, self.n_groups, head_dim)
        self.out = nn.Linear(n_heads * v_head_dim, d_model, bias=o_bias)

    def forward(self, x, keys=None, values=None, *, mask, rotate=None, cache=None):
        """Self-attention, or cross-attention to `keys` and `values`, which default to `keys`."""
        if keys is None:
            q, *kv = project(x, self.query, self.key, self.value)
        else:
            q, kv = self.query(x), None
        q_BHTD = self.query_norm(split(q, self.n_heads))
        if rotate is not None:
            q_BHTD = rotate(q_BHTD)
        if keys is not None and cache is not None and cache.length:
            k_BGSD, v_BGSE = cache.read()  # the encoder's keys and values are computed once
        else:
            kv = kv or [self.key(keys), self.value(keys if values is None else values)]
            new = self.split_keys_and_values(*kv, rotate)
            k_BGSD, v_BGSE = new if cache is None else cache.append(*new)
        merged_BTW = merge(self.attend(q_BHTD, k_BGSD, v_BGSE, mask))
        return self.out(merged_BTW)

    def split_keys_and_values(self, k, v, rotate):
        k_BGSD = self.key_norm(split(k, self.n_groups))
        if rotate is not None:
            k_BGSD = rotate(k_BGSD)
        v_BGSE = split(v, self.n_groups)
        return k_BGSD, v_BGSE


class MultiHeadLatentAttention(Attention):
    """Multi-head latent attention (arxiv.org/abs/2405.04434): the cache holds one small latent per token,
    from which the keys and values of all heads are expanded, and one rotary key for all heads.

    Defaults, where d = d_model / n_heads: qk_nope_head_dim = v_head_dim = d, qk_rope_head_dim = d / 2,
    kv_lora_rank = 4 d.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        q_lora_rank: Count | None = None,
        kv_lora_rank: Count | None = None,
        qk_nope_head_dim: Count | None = None,
        qk_rope_head_dim: Count | None = None,
        v_head_dim: Count | None = None,
        norm=RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        width = default_head_dim(d_model, n_heads)
        self.n_heads, self.n_groups, self.dropout = n_heads, n_heads, dropout
        self.kv_lora_rank, self.v_head_dim = kv_lora_rank or 4 * width, v_head_dim or width
        self.qk_nope_head_dim = qk_nope_head_dim or width
        self.qk_rope_head_dim = self.rotary_dim = qk_rope_head_dim or width // 2
        self.head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        self.scale = self.head_dim**-0.5
        if q_lora_rank is None:
            self.query = nn.Linear(d_model, n_heads * self.head_dim, bias=False)
        else:
            down = nn.Linear(d_model, q_lora_rank, bias=False)
            up = nn.Linear(q_lora_rank, n_heads * self.head_dim, bias=False)
            self.query = nn.Sequential(down, norm(q_lora_rank), up)
        self.kv_down = nn.Linear(d_model, self.kv_lora_rank, bias=False)
        self.latent_norm = norm(self.kv_lora_rank)
        self.k_rope = nn.Linear(d_model, self.qk_rope_head_dim, bias=False)
        self.key = nn.Linear(self.kv_lora_rank, n_heads * self.qk_nope_head_dim, bias=False)
        self.value = nn.Linear(self.kv_lora_rank, n_heads * self.v_head_dim, bias=False)
        self.out = nn.Linear(n_heads * self.v_head_dim, d_model, bias=False)

    def forward(self, x, *, mask, rotate=None, cache=None):
        q_BHTD = split(self.query(x), self.n_heads)
        q_BHTP, q_BHTR = q_BHTD.split([self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
        k_B1TR = split(self.k_rope(x), 1)
        if rotate is not None:
            q_BHTR, k_B1TR = rotate(q_BHTR), rotate(k_B1TR)
        # the latent and the rotary key of a token, side by side, are all that is cached of it
        new_B1TK = torch.cat([split(self.latent_norm(self.kv_down(x)), 1), k_B1TR], -1)
        [cached_B1SK] = [new_B1TK] if cache is None else cache.append(new_B1TK)
        form = self.absorbed if self.absorbing_is_cheaper(x, cached_B1SK) else self.expanded
        merged_BTW = merge(form(q_BHTP, q_BHTR, cached_B1SK, mask))
        return self.out(merged_BTW)

    def expanded(self, q_BHTP, q_BHTR, cached_B1SK, mask):
        """Multi-head attention over keys and values that are expanded from the latents."""
        latent_B1SL, k_B1SR = cached_B1SK.split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        k_BHSP = split(self.key(latent_B1SL[:, 0]), self.n_heads)
        v_BHSE = split(self.value(latent_B1SL[:, 0]), self.n_heads)
        q_BHTD = torch.cat([q_BHTP, q_BHTR], -1)
        k_BHSD = torch.cat([k_BHSP, k_B1SR.expand(-1, self.n_heads, -1, -1)], -1)
        return self.attend(q_BHTD, k_BHSD, v_BHSE, mask)

    def absorbed(self, q_BHTP, q_BHTR, cached_B1SK, mask):
        """The same result without expansion: q (W c) = (q W) c, so W, which expands a latent c to a key,
        moves to the query, and its counterpart for values to the output. All heads share the latents as keys
        (D is K) and as values (E is L)."""
        expand_HPL = self.key.weight.unflatten(0, (self.n_heads, -1))
        expand_HEL = self.value.weight.unflatten(0, (self.n_heads, -1))
        q_BHTL = torch.einsum("bhtp,hpl->bhtl", q_BHTP, expand_HPL)
        q_BHTK = torch.cat([q_BHTL, q_BHTR], -1)
        y_BHTL = self.attend(q_BHTK, cached_B1SK, cached_B1SK[..., : self.kv_lora_rank], mask)
        return torch.einsum("bhtl,hel->bhte", y_BHTL, expand_HEL)

    def absorbing_is_cheaper(self, x, cached_B1SK):
        """Compare multiplications per head: per cached token, per new token, and per pair of them."""
        T, S = x.shape[1], cached_B1SK.shape[2]
        P, R, E, L = (
            self.qk_nope_head_dim,
            self.qk_rope_head_dim,
            self.v_head_dim,
            self.kv_lora_rank,
        )
        expanded = S * L * (P + E) + T * S * (P + R + E)
        absorbed = T * L * (P + E) + T * S * (2 * L + R)
        return absorbed < expanded


ATTENTIONS = {
    "mha": partial(MultiHeadAttention, queries_per_kv=1),
    "gqa": MultiHeadAttention,
    "mqa": partial(MultiHeadAttention, queries_per_kv=None),
    "mla": MultiHeadLatentAttention,
}
