"""Attention: softmax(q k' / sqrt(D)) v. Each position asks a query, compares it with the keys of all
positions it may see, and takes the mean of their values, weighted by how well the keys fit.

All kinds share one forward, attention(x, *, mask, rotate=None, cache=None) -> like x; those that can look at
another text also take the tensors that keys and values are made from.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn as nn

from model.attend import attend
from model.build import require_above
from model.norm import RMSNorm


def split(packed, n_heads):
    """(B, T, H * D) -> (B, H, T, D)"""
    return packed.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge(heads):
    """(B, H, T, D) -> (B, T, H * D)"""
    return heads.transpose(1, 2).flatten(-2)


def head_width(d_model, n_heads):
    if d_model % n_heads:
        raise ValueError(f"d_model ({d_model}) must be a multiple of n_heads ({n_heads})")
    return d_model // n_heads


class AcrossHeads(nn.Module):
    """A norm over all heads of a position at once."""

    def __init__(self, norm, n_heads):
        super().__init__()
        self.norm, self.n_heads = norm, n_heads

    def forward(self, heads):
        return split(self.norm(merge(heads)), self.n_heads)


def qk_normalizer(kind, norm, n_heads, width):
    """Queries and keys of one size keep the softmax from saturating (arxiv.org/abs/2302.05442)."""
    kinds = {
        "none": nn.Identity,
        "head": partial(norm, width),
        "full": lambda: AcrossHeads(norm(n_heads * width), n_heads),
    }
    if kind not in kinds:
        raise ValueError(f"qk_norm is {kind!r}; choose one of: {', '.join(kinds)}")
    return kinds[kind]()


def low_rank(d_in, rank, d_out, norm):
    """One linear map, or two with a norm between them where they meet in few channels."""
    if rank is None:
        return nn.Linear(d_in, d_out, bias=False)
    down, up = nn.Linear(d_in, rank, bias=False), nn.Linear(rank, d_out, bias=False)
    return nn.Sequential(down, norm(rank), up)


class Widths(NamedTuple):
    """The widths of the tensors that keys and values are made from."""

    keys: int
    values: int


class MultiHead(nn.Module):
    """Several small attentions side by side (arxiv.org/abs/1706.03762); every `group` query heads share one
    head of keys and values (arxiv.org/abs/2305.13245), or all of them do where group is None.

    The four widths are free: x is d_model wide, keys and values are made from tensors of their own widths
    (`memory`), and a head compares key_width channels and averages value_width of them.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        memory: Widths | None = None,
        group: int | None = 1,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: str | None = "none",
        softcap: float | None = None,
        window: int | None = None,
        scale: float | None = None,
        norm=RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        require_above(0, group=group, key_width=key_width, value_width=value_width)
        require_above(0, softcap=softcap, window=window, scale=scale)
        if memory is not None and window is not None:
            raise ValueError("window is a distance within one text; cross-attention has none: leave it null")
        group = group or n_heads
        if n_heads % group:
            raise ValueError(f"n_heads ({n_heads}) must be a multiple of group ({group})")
        key_width = key_width or head_width(d_model, n_heads)
        value_width = value_width or key_width
        memory = memory or Widths(d_model, d_model)
        self.n_heads, self.n_groups = n_heads, n_heads // group
        self.key_width, self.value_width, self.rotary_width = key_width, value_width, key_width
        self.scale, self.softcap, self.window = scale or key_width**-0.5, softcap, window
        self.dropout = dropout
        self.query = nn.Linear(d_model, n_heads * key_width, bias=bias)
        self.key = nn.Linear(memory.keys, self.n_groups * key_width, bias=bias)
        self.value = nn.Linear(memory.values, self.n_groups * value_width, bias=bias)
        self.query_norm = qk_normalizer(qk_norm, norm, n_heads, key_width)
        self.key_norm = qk_normalizer(qk_norm, norm, self.n_groups, key_width)
        self.out = nn.Linear(n_heads * value_width, d_model, bias=out_bias)

    def forward(self, x, keys=None, values=None, *, mask, rotate=None, cache=None):
        q_BHTD = self.query_norm(split(self.query(x), self.n_heads))
        q_BHTD = rotate(q_BHTD) if rotate else q_BHTD
        if keys is not None and cache is not None and cache.length:
            k_BGSD, v_BGSE = cache.read()  # a memory never changes
        else:
            new = self.keys_and_values(x if keys is None else keys, values, rotate)
            k_BGSD, v_BGSE = new if cache is None else cache.append(*new)
        merged_BTW = merge(self.look_up(q_BHTD, k_BGSD, v_BGSE, mask))
        return self.out(merged_BTW)

    def look_up(self, q_BHTD, k_BGSD, v_BGSE, mask):
        dropout = self.dropout if self.training else 0.0
        return attend(q_BHTD, k_BGSD, v_BGSE, mask, scale=self.scale, softcap=self.softcap, dropout=dropout)

    def keys_and_values(self, keys, values, rotate):
        """Of the tokens given, most often from one tensor; those of earlier tokens are in the cache."""
        k_BGSD = self.key_norm(split(self.key(keys), self.n_groups))
        k_BGSD = rotate(k_BGSD) if rotate else k_BGSD
        v_BGSE = split(self.value(keys if values is None else values), self.n_groups)
        return k_BGSD, v_BGSE


class Latent(nn.Module):
    """Multi-head latent attention (arxiv.org/abs/2405.04434): keys and values of all heads are expanded from
    one small latent per token, and a cache holds only that latent and the one rotated part of the keys.

    A head compares plain_width channels that carry no position and rotary_width that carry it. Widths left
    open follow the head width d_model / n_heads: it, half of it, it; and four of it for the latent.
    """

    window = None

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        query_rank: int | None = None,
        latent_width: int | None = None,
        plain_width: int | None = None,
        rotary_width: int | None = None,
        value_width: int | None = None,
        norm=RMSNorm,
        dropout: float = 0.0,
    ):
        super().__init__()
        require_above(0, query_rank=query_rank, latent_width=latent_width, plain_width=plain_width)
        require_above(0, rotary_width=rotary_width, value_width=value_width)
        width = head_width(d_model, n_heads)
        self.n_heads, self.n_groups, self.dropout = n_heads, n_heads, dropout
        self.plain_width, self.rotary_width = plain_width or width, rotary_width or width // 2
        self.key_width, self.value_width = self.plain_width + self.rotary_width, value_width or width
        self.latent_width, self.scale = latent_width or 4 * width, self.key_width**-0.5
        self.query = low_rank(d_model, query_rank, n_heads * self.key_width, norm)
        self.latent = nn.Linear(d_model, self.latent_width, bias=False)
        self.latent_norm = norm(self.latent_width)
        self.key_position = nn.Linear(d_model, self.rotary_width, bias=False)
        self.key = nn.Linear(self.latent_width, n_heads * self.plain_width, bias=False)
        self.value = nn.Linear(self.latent_width, n_heads * self.value_width, bias=False)
        self.out = nn.Linear(n_heads * self.value_width, d_model, bias=False)

    def forward(self, x, *, mask, rotate=None, cache=None):
        q_BHTD = split(self.query(x), self.n_heads)
        q_BHTP, q_BHTR = q_BHTD.split([self.plain_width, self.rotary_width], -1)
        k_B1TR = split(self.key_position(x), 1)
        if rotate:
            q_BHTR, k_B1TR = rotate(q_BHTR), rotate(k_B1TR)
        # all that is remembered of a token: its latent and its rotated key, side by side
        new_B1TK = torch.cat([split(self.latent_norm(self.latent(x)), 1), k_B1TR], -1)
        [latents_B1SK] = [new_B1TK] if cache is None else cache.append(new_B1TK)
        form = self.absorbed if self.absorbing_is_cheaper(x, latents_B1SK) else self.expanded
        merged_BTW = merge(form(q_BHTP, q_BHTR, latents_B1SK, mask))
        return self.out(merged_BTW)

    def expanded(self, q_BHTP, q_BHTR, latents_B1SK, mask):
        """Multi-head attention over the keys and values that the latents stand for."""
        latent_B1SL, k_B1SR = latents_B1SK.split([self.latent_width, self.rotary_width], -1)
        k_BHSP = split(self.key(latent_B1SL[:, 0]), self.n_heads)
        v_BHSE = split(self.value(latent_B1SL[:, 0]), self.n_heads)
        q_BHTD = torch.cat([q_BHTP, q_BHTR], -1)
        k_BHSD = torch.cat([k_BHSP, k_B1SR.expand(-1, self.n_heads, -1, -1)], -1)
        return self.look_up(q_BHTD, k_BHSD, v_BHSE, mask)

    def absorbed(self, q_BHTP, q_BHTR, latents_B1SK, mask):
        """The same numbers without expanding anything: q (W c) = (q W) c, so W, which expands a latent c to a
        key, can be folded into the query, and its like for values into the result. All heads then look up the
        latents themselves, as one head of keys (D is K) and of values (E is L)."""
        expand_HPL = self.key.weight.unflatten(0, (self.n_heads, -1))
        expand_HEL = self.value.weight.unflatten(0, (self.n_heads, -1))
        q_BHTL = torch.einsum("bhtp,hpl->bhtl", q_BHTP, expand_HPL)
        q_BHTK = torch.cat([q_BHTL, q_BHTR], -1)
        y_BHTL = self.look_up(q_BHTK, latents_B1SK, latents_B1SK[..., : self.latent_width], mask)
        return torch.einsum("bhtl,hel->bhte", y_BHTL, expand_HEL)

    def look_up(self, q_BHTD, k_BGSD, v_BGSE, mask):
        dropout = self.dropout if self.training else 0.0
        return attend(q_BHTD, k_BGSD, v_BGSE, mask, scale=self.scale, dropout=dropout)

    def absorbing_is_cheaper(self, x, latents_B1SK):
        """By multiplications per head: expanding pays for each remembered token, absorbing for each new one
        and more at every meeting of the two."""
        T, S = x.shape[1], latents_B1SK.shape[2]
        P, R, E, L = self.plain_width, self.rotary_width, self.value_width, self.latent_width
        expanded = S * L * (P + E) + T * S * (P + R + E)
        absorbed = T * L * (P + E) + T * S * (2 * L + R)
        return absorbed < expanded


ATTENTIONS = {
    "mha": partial(MultiHead, group=1),
    "gqa": MultiHead,
    "mqa": partial(MultiHead, group=None),
    "mla": Latent,
}
