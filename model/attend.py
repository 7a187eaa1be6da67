"""Attend: the softmax over the scores, and the weighted mean of the values."""

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cpu import float32_wins, prefers_matmuls_on_cpu
from model.cuda import attention_kernels, prefers_matmuls_on_cuda, takes_groups


class Mask(NamedTuple):
    """What is added to the scores before the softmax, in its cheapest form."""

    bias: Tensor | None = None  # broadcasts to (B, H, T, S); -inf hides a key
    causal: bool = False  # T = S, and each position attends to itself and to earlier ones

    def cast_for(self, x: Tensor) -> "Mask":
        """The mask in the dtype of the scores: one copy for all layers."""
        if self.bias is None:
            return self
        return self._replace(bias=self.bias.to(matmul_dtype(x)))

    def add_to(self, scores_BHTS: Tensor) -> Tensor:
        if self.causal:
            mask_TS = torch.full_like(scores_BHTS[0, 0], float("-inf")).triu(1)
            scores_BHTS = scores_BHTS + mask_TS
        if self.bias is not None:
            scores_BHTS = scores_BHTS + self.bias.to(scores_BHTS.dtype)
        return scores_BHTS


def attention_weights(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    logit_softcap: float | None = None,
) -> Tensor:
    """The softmax of the scores, along the keys: each row sums to one."""
    if scale is None:
        scale = q_BHTD.shape[-1] ** -0.5
    queries = group_queries(q_BHTD * scale, k_BGSD)
    scores_BHTS = ungroup_queries(queries @ k_BGSD.mT, q_BHTD)  # q k' * scale
    scores_BHTS = soft_cap(scores_BHTS, logit_softcap)
    weights_BHTS = mask.add_to(scores_BHTS).softmax(-1)
    return weights_BHTS


def attend(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    logit_softcap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k' * scale + mask) v, with dropout on the weights, as the end of this function
    computes it, and with a soft cap on the scores if there is one. What stands before is faster in
    some cases; its results are the same up to rounding."""
    if q_BHTD.is_cuda:
        by_matmuls = prefers_matmuls_on_cuda(q_BHTD, mask.bias)
    else:  # true on a CPU in 16 bits for up to 512 tokens; see cpu.py
        by_matmuls = prefers_matmuls_on_cpu(q_BHTD, k_BGSD, v_BGSE)

    if logit_softcap is None and not by_matmuls:
        return attend_by_kernel(q_BHTD, k_BGSD, v_BGSE, mask, scale=scale, dropout=dropout)

    dtype = v_BGSE.dtype
    if float32_wins(q_BHTD, k_BGSD):
        q_BHTD = q_BHTD.float()
        k_BGSD = k_BGSD.float()
        v_BGSE = v_BGSE.float()

    weights_BHTS = attention_weights(q_BHTD, k_BGSD, mask, scale=scale, logit_softcap=logit_softcap)
    weights = group_queries(F.dropout(weights_BHTS, dropout), v_BGSE)
    mixed_BHTE = ungroup_queries(weights @ v_BGSE, q_BHTD).to(dtype)
    return mixed_BHTE


def attend_by_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None, dropout: float
) -> Tensor:
    """The same by torch's fused kernels, which never hold the weights."""
    n_sharing = q.shape[1] // k.shape[1]  # query heads per key/value head
    if n_sharing > 1 and not takes_groups(q, mask.bias):
        k = k.repeat_interleave(n_sharing, 1)
        v = v.repeat_interleave(n_sharing, 1)

    padding = q.shape[-1] - v.shape[-1] if mask.causal else 0
    if padding > 0:  # flash attention, which takes no bias, needs one width
        v = F.pad(v, (0, padding))

    with attention_kernels(mask.bias) if q.is_cuda else nullcontext():
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask.bias,
            dropout_p=dropout,
            is_causal=mask.causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return y[..., :-padding] if padding > 0 else y


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """Keep scores or logits within +-cap (arxiv.org/abs/2408.00118); None: unchanged."""
    return logits if cap is None else cap * (logits / cap).tanh()


def group_queries(q: Tensor, kv: Tensor) -> Tensor:
    """(B, H, T, D) -> (B, G, T * H / G, D): one matmul then serves all query heads of a key/value
    head."""
    n_groups = kv.shape[1]
    if q.shape[1] == n_groups:
        return q
    return q.unflatten(1, (n_groups, -1)).flatten(2, 3)


def ungroup_queries(grouped: Tensor, q: Tensor) -> Tensor:
    """The inverse of group_queries."""
    if grouped.shape[1] == q.shape[1]:
        return grouped
    return grouped.unflatten(2, (-1, q.shape[2])).flatten(1, 2)


def exact_dtype(values: Tensor) -> torch.dtype:
    """The dtype of long sums, as over a vocabulary, of these values: float32 at least."""
    return torch.promote_types(values.dtype, torch.float32)


def matmul_dtype(values: Tensor) -> torch.dtype:
    """The dtype of matmuls of these values, which autocast may change."""
    device = values.device.type
    if not values.is_meta and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return values.dtype
