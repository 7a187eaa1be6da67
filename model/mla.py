"""Multi-head latent attention, from DeepSeek: all heads share a small cache."""

from functools import partial

import torch
from torch import Tensor, nn

from configs.registry import Count
from model.attend import Mask
from model.attention import ATTENTIONS, Attention, merge, split
from model.cache import KVCache
from model.norm import MakeNorm, RMSNorm
from model.position import Rotate


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
        width = d_model // n_heads  # the default head dimension

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
        self.query: nn.Module = linear(q_lora_rank or d_model, n_heads * self.head_dim)

        if q_lora_rank is not None:
            down = linear(d_model, q_lora_rank)
            self.query = nn.Sequential(down, norm(q_lora_rank), self.query)

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
        q_BTW = self.query(x)
        q_BHTD = split(q_BTW, self.n_heads)
        q_BHTP, q_BHTR = q_BHTD.split([self.qk_nope_head_dim, self.rotary_dim], -1)
        k_B1TR = split(self.k_rope(x), n_heads=1)

        if rotate is not None:
            q_BHTR = rotate(q_BHTR)
            k_B1TR = rotate(k_B1TR)

        # the latent and the rotary key of a token, side by side, are all that is cached for it
        latent_BTL = self.latent_norm(self.kv_down(x))
        latent_B1TL = split(latent_BTL, n_heads=1)
        new_B1TK = torch.cat([latent_B1TL, k_B1TR], -1)
        [cached_B1SK] = [new_B1TK] if cache is None else cache.append(new_B1TK)

        form = self.absorbed if x.shape[1] == 1 else self.expanded
        merged_BTW = merge(form(q_BHTP, q_BHTR, cached_B1SK, mask))
        y_BTC = self.out(merged_BTW)
        return y_BTC

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
        mixed_BHTL = self.attend(q_BHTK, cached_B1SK, latent_B1SL, mask)
        mixed_BHTE = torch.einsum("bhtl,hel->bhte", mixed_BHTL, expand_HEL)
        return mixed_BHTE


ATTENTIONS["mla"] = MultiHeadLatentAttention
