"""Attend: the one place scores become weights. Who may see whom, the softmax, and the weighted mean of
values."""

from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F

RECORDS = []  # lists that weights are written to, the innermost last


class Mask(NamedTuple):
    """What is added to the scores before the softmax; the cheapest form that says it."""

    bias: torch.Tensor | None = None  # broadcasts to (B, H, T, S); -inf forbids
    causal: bool = False  # a square in which each position sees itself and what came before

    def add_to(self, scores_BHTS):
        if self.causal:
            ahead_TS = torch.full_like(scores_BHTS[0, 0], float("-inf")).triu(1)
            scores_BHTS = scores_BHTS + ahead_TS
        if self.bias is not None:
            scores_BHTS = scores_BHTS + self.bias.to(scores_BHTS.dtype)
        return scores_BHTS


def make_mask(q_pos, k_pos, *, causal, sliding_window=None, visible=None, bias=None):
    """The mask of self-attention: order, distance and padding, told by the positions of queries, (1|B, T),
    and of keys, (1|B, S), so that it does not matter where in a batch or cache they lie.

    sliding_window: a causal query sees that many keys, itself included; without causality, half as many to each side.
    visible: (B, S), false where a key is padding.
    """
    if causal and sliding_window is None and visible is None and bias is None:
        if q_pos.shape == k_pos.shape:
            return Mask(causal=True)
        if q_pos.shape[-1] == 1:  # the newest position sees all there is
            return Mask()
    if not causal and sliding_window is None and visible is None:
        return Mask(bias)
    behind_B1TS = q_pos[:, None, :, None] - k_pos[:, None, None, :]
    allowed_B1TS = behind_B1TS >= 0 if causal else torch.ones_like(behind_B1TS, dtype=torch.bool)
    if sliding_window is not None:
        allowed_B1TS = allowed_B1TS & (
            behind_B1TS < sliding_window if causal else behind_B1TS.abs() <= sliding_window // 2
        )
    if visible is not None:
        # padding sees itself, so that no row of weights is empty
        allowed_B1TS = (allowed_B1TS & visible[:, None, None, :]) | (behind_B1TS == 0)
    return Mask(torch.where(allowed_B1TS, 0.0 if bias is None else bias, float("-inf")))


def make_cross_mask(visible):
    """The mask of cross-attention: nothing but the padding of the memory is hidden."""
    if visible is None:
        return Mask()
    return Mask(torch.where(visible[:, None, None, :], 0.0, float("-inf")))


def group_queries(heads, shared):
    """Line up the queries of all heads that share a head of keys, so that one product serves them; where none
    do (G = H) nothing changes."""
    return heads.unflatten(1, (shared.shape[1], -1)).flatten(2, 3)


def ungroup_queries(rows, heads):
    """The rows as heads again."""
    return rows.unflatten(2, (-1, heads.shape[2])).flatten(1, 2)


def prefer_math_kernel(q_BHTD, k_BGSD, v_BGSE):
    """On a CPU the fused kernel loses to plain products, up to five times, where texts are short and numbers
    anything but float32 in full precision; beyond 512 tokens it wins, and in bfloat16 for a single query, as
    decoding has it (tests/benchmarks/attention.py). Keys and values of two widths it does not know."""
    if q_BHTD.device.type != "cpu":
        return False
    if k_BGSD.shape[-1] != v_BGSE.shape[-1]:
        return True
    if q_BHTD.shape[-2] * k_BGSD.shape[-2] > 512 * 512:
        return False
    if q_BHTD.dtype == torch.bfloat16:
        return q_BHTD.shape[-2] > 1
    if q_BHTD.dtype != torch.float32 or torch.compiler.is_compiling():
        return True
    return torch.get_float32_matmul_precision() != "highest"


def attention_weights(q_BHTD, k_BGSD, mask, *, scale=None, logit_softcap=None):
    """The weights themselves: along the keys, each row sums to one."""
    scale = q_BHTD.shape[-1] ** -0.5 if scale is None else scale
    scores_BGJS = group_queries(q_BHTD * scale, k_BGSD) @ k_BGSD.mT
    scores_BHTS = ungroup_queries(scores_BGJS, q_BHTD)
    if logit_softcap is not None:
        scores_BHTS = logit_softcap * (scores_BHTS / logit_softcap).tanh()
    weights_BHTS = mask.add_to(scores_BHTS).softmax(-1)
    return weights_BHTS


@contextmanager
def record_attention():
    """While it is open, attend makes its weights in the open; the list it gives collects them in the order of
    the layers."""
    RECORDS.append([])
    try:
        yield RECORDS[-1]
    finally:
        RECORDS.pop()


def attend(q_BHTD, k_BGSD, v_BGSE, mask, *, scale=None, logit_softcap=None, dropout=0.0):
    """softmax(q k' * scale + mask) v. Each head of keys and values serves H / G heads of queries. Dropout is
    that of the weights; it is 0 but in training."""
    if logit_softcap is None and not RECORDS and not prefer_math_kernel(q_BHTD, k_BGSD, v_BGSE):
        bias = None if mask.bias is None else mask.bias.to(q_BHTD.dtype)
        shared = q_BHTD.shape[1] != k_BGSD.shape[1]
        return F.scaled_dot_product_attention(
            q_BHTD,
            k_BGSD,
            v_BGSE,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=mask.causal,
            scale=scale,
            enable_gqa=shared,
        )
    weights_BHTS = attention_weights(q_BHTD, k_BGSD, mask, scale=scale, logit_softcap=logit_softcap)
    if RECORDS:
        RECORDS[-1].append(weights_BHTS)
    y_BGJE = group_queries(F.dropout(weights_BHTS, dropout), v_BGSE) @ v_BGSE
    y_BHTE = ungroup_queries(y_BGJE, q_BHTD)
    return y_BHTE
