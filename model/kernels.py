"""Kernels: attend() in the way that is fastest on this device, with the same result."""

from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.attend import Mask, attend
from model.cpu import float32_wins, prefer_math_kernel
from model.cuda import attention_kernels, prefers_matmuls, takes_groups


def fast_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    scale: float | None = None,
    logit_softcap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    options: Any = {"scale": scale, "logit_softcap": logit_softcap, "dropout": dropout}
    if float32_wins(q):
        return attend_in_float32(q, k, v, mask, **options)
    by_matmuls = prefer_math_kernel(q, k, v) or prefers_matmuls(q, mask.bias)
    if by_matmuls or logit_softcap is not None:  # which no kernel has
        return attend(q, k, v, mask, **options)
    return attend_by_kernel(q, k, v, mask, scale=scale, dropout=dropout)


def attend_by_kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None, dropout: float
) -> Tensor:
    """By torch's fused kernels, which never hold the weights."""
    bias = None if mask.bias is None else mask.bias.to(q.dtype)
    n_sharing = q.shape[1] // k.shape[1]  # query heads of a key/value head
    if n_sharing > 1 and not takes_groups(q, bias):
        k = k.repeat_interleave(n_sharing, 1)
        v = v.repeat_interleave(n_sharing, 1)

    missing = q.shape[-1] - v.shape[-1] if mask.causal else 0
    if missing > 0:  # flash attention needs one width
        v = F.pad(v, (0, missing))
    with attention_kernels(bias):
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias,
            dropout_p=dropout,
            is_causal=mask.causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return y[..., :-missing] if missing > 0 else y


def attend_in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> Tensor:
    """For one query, so that no mask is causal."""
    n_rows = max(1, 2**18 // k[0].numel())  # at a time: their copies stay in the CPU's cache
    biases: Any = repeat(mask.bias)
    if mask.bias is not None and len(mask.bias) > 1:
        biases = mask.bias.split(n_rows)
    columns = (tensor.split(n_rows) for tensor in (q, k, v))
    outputs = []
    with torch.autocast("cpu", enabled=False):
        for *rows, bias in zip(*columns, biases, strict=False):
            q_n, k_n, v_n = (tensor.float() for tensor in rows)
            outputs.append(fast_attend(q_n, k_n, v_n, Mask(bias), **options))
    return torch.cat(outputs).type_as(q)
