"""Attention, softmax(q k' / sqrt(D)) v: compare the query of each position with the keys of all
positions that it may attend to, and average their values with the resulting weights. All kinds of
self-attention are called as attention(x, mask=..., rotate=..., cache=...).

Axes: B rows, T queries, S keys, C model width, H query heads, G key/value heads, D width of a query
or key, E of a value, W heads side by side."""

from functools import partial
from typing import Any, Literal

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


class Attention(nn.Module):
    """Base of all kinds of attention, which set these attributes."""

    n_heads: int
    n_groups: int  # heads of keys and values
    rotary_dim: int = 0
    scale: float
    dropout: float
    sliding_window: int | None = None
    logit_softcap: float | None = None

    def new_cache(self, slots: Slots) -> State:
        """The state for decoding; a kind that keeps something else returns a State of its own."""
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
    heads (None: all) share one key/value head (arxiv.org/abs/2305.13245). All widths are
    independent: x has d_model; a head has head_dim, and v_head_dim for its values. cross.py reads
    keys and values from a memory."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        memory: tuple[int, int] | None = None,  # widths of what keys and values read, if not x
        queries_per_kv: Count | None = 1,
        head_dim: Count | None = None,
        v_head_dim: Count | None = None,
        bias: bool = False,
        o_bias: bool = False,
        qk_norm: Literal["none", "head", "full"] = "none",
        logit_softcap: Positive | None = None,
        sliding_window: Count | None = None,
        scale: Positive | None = None,
        norm: MakeNorm = RMSNorm,  # the model's own, if it is built by a Stack
        dropout: float = 0.0,
    ):
        super().__init__()

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

        self.key_width, self.value_width = memory or (d_model, d_model)
        self.query = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.key = nn.Linear(self.key_width, self.n_groups * self.head_dim, bias=bias)
        self.value = nn.Linear(self.value_width, self.n_groups * self.v_head_dim, bias=bias)

        # normalized queries and keys keep the softmax from saturating (arxiv.org/abs/2302.05442)
        head_norm = norm if qk_norm == "head" else nn.Identity
        self.query_norm = head_norm(self.head_dim)
        self.key_norm = head_norm(self.head_dim)
        if qk_norm == "full":
            self.query_norm = FullNorm(norm(n_heads * self.head_dim))
            self.key_norm = FullNorm(norm(self.n_groups * self.head_dim))
        self.out = nn.Linear(n_heads * self.v_head_dim, d_model, bias=o_bias)

    def forward(
        self, x: Tensor, *, mask: Mask, rotate: Rotate | None = None, cache: Any = None
    ) -> Tensor:
        q_BTW, k_BTW, v_BTW = project(x, self.query, self.key, self.value)
        q_BHTD = self.queries(q_BTW, rotate)
        k_BGSD, v_BGSE = self.keys_and_values(k_BTW, v_BTW, rotate, cache)
        merged_BTW = merge(self.attend(q_BHTD, k_BGSD, v_BGSE, mask))
        y_BTC = self.out(merged_BTW)
        return y_BTC

    def queries(self, q_BTW: Tensor, rotate: Rotate | None) -> Tensor:
        q_BHTD = self.query_norm(split(q_BTW, self.n_heads))
        return q_BHTD if rotate is None else rotate(q_BHTD)

    def keys_and_values(
        self, k_BSW: Tensor, v_BSW: Tensor, rotate: Rotate | None, cache: KVCache | None
    ) -> list[Tensor]:
        """The keys and values of the cache, then the new ones."""
        k_BGSD = self.key_norm(split(k_BSW, self.n_groups))
        if rotate is not None:
            k_BGSD = rotate(k_BGSD)
        v_BGSE = split(v_BSW, self.n_groups)
        return [k_BGSD, v_BGSE] if cache is None else cache.append(k_BGSD, v_BGSE)


class FullNorm(nn.Module):
    """One norm over the width of all heads, as in OLMo 2 (arxiv.org/abs/2501.00656)."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(self, heads: Tensor) -> Tensor:
        return split(self.norm(merge(heads)), heads.shape[1])


ATTENTIONS = Registry(
    mha=partial(MultiHeadAttention, queries_per_kv=1),
    gqa=MultiHeadAttention,
    mqa=partial(MultiHeadAttention, queries_per_kv=None),
)
