"""Attend: masks, the softmax over the scores, and the weighted mean of the values."""

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Mask(NamedTuple):
    """What is added to the scores before the softmax, in its cheapest form."""

    bias: torch.Tensor | None = None  # broadcasts to (B, H, T, S); -inf hides a key
    causal: bool = False  # T = S, and each position attends to itself and to earlier ones

    def add_to(self, scores_BHTS):
        if self.causal:
            ahead_TS = torch.full_like(scores_BHTS[0, 0], float("-inf")).triu(1)
            scores_BHTS = scores_BHTS + ahead_TS
        if self.bias is not None:
            scores_BHTS = scores_BHTS + self.bias.to(scores_BHTS.dtype)
        return scores_BHTS


def make_mask(q_pos, k_pos, *, causal, sliding_window=None, visible=None, bias=None):
    """The mask of self-attention. It compares positions, (1|B, T) and (1|B, S), not indices, so padding and a
    cache may place tokens anywhere.

    sliding_window: how many keys a causal query sees, itself included; otherwise half as many on each side.
    visible: (B, S), false where a key is padding.
    """
    if causal and sliding_window is None and visible is None and bias is None:
        if q_pos.shape == k_pos.shape:
            return Mask(causal=True)
        if q_pos.shape[-1] == 1:  # the newest position sees all keys
            return Mask()
    if not causal and sliding_window is None and visible is None:
        return Mask(bias)
    behind_B1TS = q_pos[:, None, :, None] - k_pos[:, None, None, :]
    allowed_B1TS = behind_B1TS >= 0 if causal else torch.ones_like(behind_B1TS, dtype=torch.bool)
    if sliding_window is not None:
        near_B1TS = (
            behind_B1TS < sliding_window if causal else behind_B1TS.abs() <= sliding_window // 2
        )
        allowed_B1TS = allowed_B1TS & near_B1TS
    if visible is not None:
        # padding sees itself, so that no row of weights is empty
        allowed_B1TS = (allowed_B1TS & visible[:, None, None, :]) | (behind_B1TS == 0)
    return Mask(torch.where(allowed_B1TS, 0.0 if bias is None else bias, float("-inf")))


def make_cross_mask(visible):
    """The mask of cross-attention hides only the padding of the memory."""
    if visible is None:
        return Mask()
    return Mask(torch.where(visible[:, None, None, :], 0.0, float("-inf")))


def soft_cap(logits, cap):
    """Keep scores or logits within +-cap (arxiv.org/abs/2408.00118); null: as they are."""
    return logits if cap is None else cap * (logits / cap).tanh()


def group_queries(q, kv):
    """(B, H, T, D) -> (B, G, J, D): one matmul then serves all query heads of a key/value head."""
    return q if q.shape[1] == kv.shape[1] else q.unflatten(1, (kv.shape[1], -1)).flatten(2, 3)


def ungroup_queries(grouped, q):
    """(B, G, J, D) -> (B, H, T, D)"""
    return (
        grouped
        if grouped.shape[1] == q.shape[1]
        else grouped.unflatten(2, (-1, q.shape[2])).flatten(1, 2)
    )


def prefer_math_kernel(q_BHTD, k_BGSD, v_BGSE):
    """Whether explicit matmuls beat the fused kernel. On a CPU they do, by up to 5x, for short sequences in
    anything but full float32; beyond 512 tokens the fused kernel wins (tests/benchmarks/attention.py). It
    needs keys and values of one width."""
    if q_BHTD.device.type != "cpu":
        return False
    if k_BGSD.shape[-1] != v_BGSE.shape[-1]:
        return True
    if q_BHTD.shape[-2] * k_BGSD.shape[-2] > 512 * 512:
        return False
    if q_BHTD.dtype != torch.float32 or torch.compiler.is_compiling():
        return True
    return torch.get_float32_matmul_precision() != "highest"


def attention_weights(q_BHTD, k_BGSD, mask, *, scale=None, logit_softcap=None):
    """Scores after the softmax: along the keys, each row sums to one."""
    scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
    scores_BGJS = group_queries(q_BHTD * scale, k_BGSD) @ k_BGSD.mT  # scores: q k' * scale
    scores_BHTS = ungroup_queries(scores_BGJS, q_BHTD)
    scores_BHTS = soft_cap(scores_BHTS, logit_softcap)
    weights_BHTS = mask.add_to(scores_BHTS).softmax(-1)  # along the keys
    return weights_BHTS


def attend_in_float32(q_BHTD, k_BGSD, v_BGSE, mask, **options):
    """The same in float32, a few rows at a time, so that the copies stay in the CPU's cache."""
    rows = max(1, 2**18 // k_BGSD[0].numel())
    bias = [] if mask.bias is None else [mask.bias.expand(len(q_BHTD), -1, -1, -1)]
    with torch.autocast("cpu", enabled=False):
        parts = [
            attend(q.float(), k.float(), v.float(), Mask(*bias), **options)
            for q, k, v, *bias in zip(
                *(x.split(rows) for x in (q_BHTD, k_BGSD, v_BGSE, *bias)), strict=True
            )
        ]
    return torch.cat(parts).type_as(q_BHTD)


def attend(q_BHTD, k_BGSD, v_BGSE, mask, *, scale=None, logit_softcap=None, dropout=0.0):
    """softmax(q k' * scale + mask) v, with dropout on the weights."""
    if q_BHTD.shape[-2] == 1 and q_BHTD.device.type == "cpu" and q_BHTD.dtype.itemsize == 2:
        # a single query, as in decoding: in 16 bits it takes 2 to 7 times as long as in float32
        options = {"scale": scale, "logit_softcap": logit_softcap, "dropout": dropout}
        return attend_in_float32(q_BHTD, k_BGSD, v_BGSE, mask, **options)
    if logit_softcap is None and not prefer_math_kernel(q_BHTD, k_BGSD, v_BGSE):
        bias = None if mask.bias is None else mask.bias.to(q_BHTD.dtype)
        options = {
            "attn_mask": bias,
            "is_causal": mask.causal,
            "dropout_p": dropout,
            "scale": scale,
        }
        grouped = q_BHTD.shape[1] != k_BGSD.shape[1]
        return F.scaled_dot_product_attention(q_BHTD, k_BGSD, v_BGSE, enable_gqa=grouped, **options)
    weights_BHTS = attention_weights(q_BHTD, k_BGSD, mask, scale=scale, logit_softcap=logit_softcap)
    y_BGJE = group_queries(F.dropout(weights_BHTS, dropout), v_BGSE) @ v_BGSE  # weights @ values
    y_BHTE = ungroup_queries(y_BGJE, q_BHTD)
    return y_BHTE
