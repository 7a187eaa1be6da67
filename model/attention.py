"""Attention, softmax(q k' / sqrt(D)) v: compare the query of each position with the keys of all
positions that it may attend to, and average their values with the resulting weights. All kinds
share the signature attention(x, *, mask, rotate=None, cache=None)."""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from configs.registry import Count, Positive, Registry
from model.attend import Mask, attend
from model.cache import KVCache, Slots, State
from model.linear import project
from model.norm import MakeNorm, RMSNorm
from model.position import Rotate


def split(packed: Tensor, n_heads: int) -> Tensor:
    """(B, T, H * D) -> (B, H, T, D)"""
    return packed.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge(heads: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, T, H * D)"""
    return heads.transpose(1, 2).flatten(-2)


class FullNorm(nn.Module):
    """One norm over the width of all heads, as in OLMo 2 (arxiv.org/abs/2501.00656)."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(self, heads: Tensor) -> Tensor:
        return split(self.norm(merge(heads)), heads.shape[1])


class Attention(nn.Module):
    """Base of all kinds, which set these sizes."""

    n_heads: int
    n_groups: int  # heads of keys and values
    rotary_dim: int = 0
    scale: float
    dropout: float
    sliding_window: int | None = None
    logit_softcap: float | None = None

    def new_cache(self, slots: Slots) -> State:
        """What decoding keeps: a kind that keeps something else has a State of its own."""
        return KVCache(slots, self.sliding_window)

    def attend(self, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, mask: Mask) -> Tensor:
        return attend(
            q_BHTD,
            k_BGSD,
            v_BGSE,
            mask,
            scale=self.scale,
            logit_softcap=self.logit_softcap,
            dropout=self.dropout if self.training else 0.0,
        )


class MultiHeadAttention(Attention):
    """Multi-head attention (arxiv.org/abs/1706.03762), in which groups of `queries_per_kv` query
    heads (None: all) share one head of keys and values (arxiv.org/abs/2305.13245). All widths are
    independent: d_model of x, `memory` (input widths of the key and value projections, for
    cross-attention), and per head head_dim (queries and keys) and v_head_dim (values)."""

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
        qk_norm: Literal["none", "head", "full"] = "none",
        logit_softcap: Positive | None = None,
        sliding_window: Count | None = None,
        scale: Positive | None = None,
        norm: MakeNorm = RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        if memory is not None and sliding_window is not None:
            raise ValueError("sliding_window does not apply to cross-attention: leave it null")
        if head_dim is None and d_model % n_heads:
            raise ValueError(f"d_model ({d_model}) must be a multiple of n_heads ({n_heads})")
        queries_per_kv = queries_per_kv or n_heads
        if n_heads % queries_per_kv:
            raise ValueError(
                f"n_heads ({n_heads}) must be a multiple of queries_per_kv ({queries_per_kv})"
            )

        self.n_heads = n_heads
        self.n_groups = n_heads // queries_per_kv
        self.head_dim = head_dim or d_model // n_heads
        self.v_head_dim = v_head_dim or self.head_dim
        self.rotary_dim = self.head_dim
        self.scale = scale or self.head_dim**-0.5
        self.query_gain = self.head_dim**-0.5 / self.scale  # T5's scale of 1 needs smaller queries
        self.logit_softcap = logit_softcap
        self.sliding_window = sliding_window
        self.dropout = dropout

        key_width, value_width = memory or (d_model, d_model)
        self.query = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.key = nn.Linear(key_width, self.n_groups * self.head_dim, bias=bias)
        self.value = nn.Linear(value_width, self.n_groups * self.v_head_dim, bias=bias)
        # normalized, they keep the softmax from saturating (arxiv.org/abs/2302.05442)
        head_norm: MakeNorm = norm if qk_norm == "head" else nn.Identity
        self.query_norm = head_norm(self.head_dim)
        self.key_norm = head_norm(self.head_dim)
        if qk_norm == "full":
            self.query_norm = FullNorm(norm(n_heads * self.head_dim))
            self.key_norm = FullNorm(norm(self.n_groups * self.head_dim))
        self.out = nn.Linear(n_heads * self.v_head_dim, d_model, bias=o_bias)

    def forward(
        self,
        x: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Mask,
        rotate: Rotate | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Self-attention, or cross-attention to `keys` and `values`, which default to `keys`."""
        if keys is None:
            query, key, value = project(x, self.query, self.key, self.value)
            k_BGSD, v_BGSE = self.keys_and_values(key, value, rotate, cache)
        else:
            query = self.query(x)
            if cache is None or not cache.buffers:
                key = self.key(keys)
                value = self.value(keys if values is None else values)
                k_BGSD, v_BGSE = self.keys_and_values(key, value, rotate, cache=None)
                if cache is not None:  # those of a memory are computed once
                    cache.write(k_BGSD, v_BGSE)
            else:
                k_BGSD, v_BGSE = cache.buffers

        q_BHTD = self.query_norm(split(query, self.n_heads))
        if rotate is not None:
            q_BHTD = rotate(q_BHTD)
        merged_BTW = merge(self.attend(q_BHTD, k_BGSD, v_BGSE, mask))
        return self.out(merged_BTW)

    def keys_and_values(
        self, key: Tensor, value: Tensor, rotate: Rotate | None, cache: KVCache | None
    ) -> list[Tensor]:
        """The new ones, after those that are cached."""
        k_BGSD = self.key_norm(split(key, self.n_groups))
        if rotate is not None:
            k_BGSD = rotate(k_BGSD)
        v_BGSE = split(value, self.n_groups)
        return [k_BGSD, v_BGSE] if cache is None else cache.append(k_BGSD, v_BGSE)


class MultiHeadLatentAttention(Attention):
    """Multi-head latent attention (arxiv.org/abs/2405.04434): the cache holds one small latent per
    token, from which the keys and values of all heads are expanded, and one rotary key for all.

    Defaults, where d = d_model / n_heads: qk_nope_head_dim = v_head_dim = d,
    qk_rope_head_dim = d / 2, kv_lora_rank = 4 d.
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
        norm: MakeNorm = RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        width = d_model // n_heads  # the default of a head

        self.n_heads = n_heads
        self.n_groups = n_heads
        self.kv_lora_rank = kv_lora_rank or 4 * width
        self.qk_nope_head_dim = qk_nope_head_dim or width
        self.rotary_dim = qk_rope_head_dim or width // 2
        self.head_dim = self.qk_nope_head_dim + self.rotary_dim
        self.v_head_dim = v_head_dim or width
        self.scale = self.head_dim**-0.5
        self.dropout = dropout

        linear = partial(nn.Linear, bias=False)
        self.query: nn.Module
        if q_lora_rank is None:
            self.query = linear(d_model, n_heads * self.head_dim)
        else:
            down = linear(d_model, q_lora_rank)
            up = linear(q_lora_rank, n_heads * self.head_dim)
            self.query = nn.Sequential(down, norm(q_lora_rank), up)

        self.kv_down = linear(d_model, self.kv_lora_rank)
        self.latent_norm = norm(self.kv_lora_rank)
        self.k_rope = linear(d_model, self.rotary_dim)
        self.key = linear(self.kv_lora_rank, n_heads * self.qk_nope_head_dim)
        self.value = linear(self.kv_lora_rank, n_heads * self.v_head_dim)
        self.out = linear(n_heads * self.v_head_dim, d_model)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        rotate: Rotate | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        q_BHTD = split(self.query(x), self.n_heads)
        q_BHTP, q_BHTR = q_BHTD.split([self.qk_nope_head_dim, self.rotary_dim], -1)
        k_B1TR = split(self.k_rope(x), n_heads=1)
        if rotate is not None:
            q_BHTR = rotate(q_BHTR)
            k_B1TR = rotate(k_B1TR)

        # the latent and the rotary key of a token, side by side, are all that is cached of it
        latent_B1TL = split(self.latent_norm(self.kv_down(x)), n_heads=1)
        new_B1TK = torch.cat([latent_B1TL, k_B1TR], -1)
        if cache is None:
            cached_B1SK = new_B1TK
        else:
            [cached_B1SK] = cache.append(new_B1TK)

        form = self.absorbed if x.shape[1] == 1 else self.expanded
        merged_BTW = merge(form(q_BHTP, q_BHTR, cached_B1SK, mask))
        return self.out(merged_BTW)

    def expanded(self, q_BHTP: Tensor, q_BHTR: Tensor, cached_B1SK: Tensor, mask: Mask) -> Tensor:
        """Multi-head attention over keys and values that are expanded from the latents: cheaper for
        many queries, as in training."""
        latent_B1SL, k_B1SR = cached_B1SK.split([self.kv_lora_rank, self.rotary_dim], -1)
        latent = latent_B1SL[:, 0]
        k_BHSP = split(self.key(latent), self.n_heads)
        v_BHSE = split(self.value(latent), self.n_heads)
        k_BHSR = k_B1SR.expand(-1, self.n_heads, -1, -1)

        q_BHTD = torch.cat([q_BHTP, q_BHTR], -1)
        k_BHSD = torch.cat([k_BHSP, k_BHSR], -1)
        return self.attend(q_BHTD, k_BHSD, v_BHSE, mask)

    def absorbed(self, q_BHTP: Tensor, q_BHTR: Tensor, cached_B1SK: Tensor, mask: Mask) -> Tensor:
        """The same result without expansion, cheaper for a single query: q (W c) = (q W) c, so W,
        which expands a latent c to a key, moves to the query, and its counterpart for values to the
        output. All heads share the latents as keys (D is K) and as values (E is L)."""
        expand_HPL = self.key.weight.unflatten(0, (self.n_heads, -1))
        expand_HEL = self.value.weight.unflatten(0, (self.n_heads, -1))

        q_BHTL = torch.einsum("bhtp,hpl->bhtl", q_BHTP, expand_HPL)
        q_BHTK = torch.cat([q_BHTL, q_BHTR], -1)

        latent_B1SL = cached_B1SK[..., : self.kv_lora_rank]
        y_BHTL = self.attend(q_BHTK, cached_B1SK, latent_B1SL, mask)
        return torch.einsum("bhtl,hel->bhte", y_BHTL, expand_HEL)


ATTENTIONS = Registry(
    mha=partial(MultiHeadAttention, queries_per_kv=1),
    gqa=MultiHeadAttention,
    mqa=partial(MultiHeadAttention, queries_per_kv=None),
    mla=MultiHeadLatentAttention,
)
