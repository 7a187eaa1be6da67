"""Attention of one bfloat16 query, as in decoding on a CPU, which is faster in float32."""

from itertools import repeat
from typing import Any

import torch
from torch import Tensor


def in_float32(
    attend: Any, q_BHTD: Tensor, k_BGSD: Tensor, v_BGSE: Tensor, mask: Any, **options: Any
) -> Tensor:
    """attend(q, k, v, mask, **options) in float32, for a single query: the mask is never causal."""
    n_rows = max(1, 2**18 // k_BGSD[0].numel())  # at a time: their copies fit in the CPU's cache
    biases: Any = repeat(mask.bias)
    if mask.bias is not None and len(mask.bias) > 1:
        biases = mask.bias.split(n_rows)
    columns = (tensor.split(n_rows) for tensor in (q_BHTD, k_BGSD, v_BGSE))
    outputs = []
    with torch.autocast("cpu", enabled=False):
        for q, k, v, bias in zip(*columns, biases, strict=False):
            own = mask._replace(bias=bias)
            outputs.append(attend(q.float(), k.float(), v.float(), own, **options))
    return torch.cat(outputs).type_as(q_BHTD)
