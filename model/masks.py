"""Masks that hide more than later tokens: windows, padding and documents; or that add a bias. And
positions in documents, or beside padding."""

from typing import Any

import torch
from torch import Tensor

from model.attend import Mask, matmul_dtype


def make_mask(
    q_pos: Tensor,
    k_pos: Tensor,
    *,
    causal: bool,
    sliding_window: int | None = None,
    visible: Tensor | None = None,
    documents: Tensor | None = None,
    bias: Tensor | None = None,
) -> Mask:
    """The mask of self-attention where keys are hidden, or biased. It compares positions, (1|B, T)
    and (1|B, S), not indices, so padding and a cache may place tokens anywhere.

    sliding_window: how many keys a causal query sees, including itself; if not causal, half as many
    on each side. visible: (B, S), false where a key is padding. documents: (B, T), where T = S; a
    query sees only keys with the same document number.
    """
    behind_B1TS = q_pos[:, None, :, None] - k_pos[:, None, None, :]
    distance_B1TS = behind_B1TS if causal else behind_B1TS.abs()
    allowed_B1TS = distance_B1TS >= 0

    if sliding_window is not None:
        farthest = sliding_window - 1 if causal else sliding_window // 2
        allowed_B1TS = allowed_B1TS & (distance_B1TS <= farthest)

    if documents is not None:
        same_BTS = documents[:, :, None] == documents[:, None, :]
        allowed_B1TS = allowed_B1TS & same_BTS[:, None]

    if visible is not None:
        allowed_B1TS = allowed_B1TS & visible[:, None, None, :]

        # padding sees itself, so that no row of weights is empty
        allowed_B1TS = allowed_B1TS | (behind_B1TS == 0)
    return Mask(torch.where(allowed_B1TS, 0.0 if bias is None else bias, float("-inf")))


def cast_for(x: Tensor, mask: Any) -> Mask:
    """The mask in the dtype of the scores: one copy for all layers."""
    return mask._replace(bias=mask.bias.to(matmul_dtype(x)))


def renumbered(
    q_slots: Tensor, k_slots: Tensor, visible: Any, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Positions of queries and keys that restart in each document, or begin at the first visible
    token, so that left padding changes nothing."""
    if documents is not None:  # searchsorted finds the first token of the same document
        pos = q_slots - torch.searchsorted(documents, documents)
        return pos, pos

    first_B1 = visible.int().argmax(-1, keepdim=True)
    return q_slots - first_B1, k_slots - first_B1
