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

    def add_to(self, scores_BHTS: Tensor) -> Tensor:
        if self.causal:
            mask_TS = torch.full_like(scores_BHTS[0, 0], float("-inf")).triu(1)
            scores_BHTS = scores_BHTS + mask_TS
        if self.bias is not None:
            scores_BHTS = scores_BHTS + self.bias.to(scores_BHTS.dtype)
        return scores_BHTS


NO_MASK = Mask()


def attention_weights(
    q_BHTD: Tensor,
    k_BGSD: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    logit_softcap: float | None = None,
) -> Tensor:
    """The softmax of the scores, along the keys: each row sums to one. With fewer key/value heads
    (G < H), the queries that share one are stacked along the time axis: one matmul serves them."""
    B, H, T, D = q_BHTD.shape
    if scale is None:
        scale = D**-0.5
    queries = (q_BHTD * scale).reshape(B, k_BGSD.shape[1], -1, D)
    scores_BHTS = (queries @ k_BGSD.mT).reshape(B, H, T, -1)
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
    """softmax(q k' * scale + mask) v, with dropout on the weights, and a soft cap on the scores if
    there is one. The last lines are this formula. What stands before them is the same up to
    rounding, and used where it is faster."""
    if q_BHTD.is_cuda:
        by_matmuls = prefers_matmuls_on_cuda(q_BHTD, mask.bias)
    else:  # in eager mode, matmuls are faster only in 16 bits, for up to 512 tokens (see cpu.py)
        by_matmuls = prefers_matmuls_on_cpu(q_BHTD, k_BGSD, v_BGSE)

    if logit_softcap is None and not by_matmuls:
        return attend_by_kernel(q_BHTD, k_BGSD, v_BGSE, mask, scale=scale, dropout=dropout)

    dtype = v_BGSE.dtype
    if float32_wins(q_BHTD, k_BGSD):
        q_BHTD = q_BHTD.float()
        k_BGSD = k_BGSD.float()
        v_BGSE = v_BGSE.float()

    weights_BHTS = attention_weights(q_BHTD, k_BGSD, mask, scale=scale, logit_softcap=logit_softcap)
    B, G, S, E = v_BGSE.shape
    weights = F.dropout(weights_BHTS, dropout).reshape(B, G, -1, S)
    mixed_BHTE = (weights @ v_BGSE).reshape(*q_BHTD.shape[:3], E)
    return mixed_BHTE.to(dtype)


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


def exact_dtype(values: Tensor) -> torch.dtype:
    """The dtype of long sums, as over a vocabulary, of these values: float32 at least."""
    return torch.promote_types(values.dtype, torch.float32)


def matmul_dtype(values: Tensor) -> torch.dtype:
    """The dtype of matmuls of these values, which autocast may change."""
    device = values.device.type
    if not values.is_meta and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return values.dtype
