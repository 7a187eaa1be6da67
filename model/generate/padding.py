"""Padding: what is visible in rows of unequal length; and rows that outgrow the context."""

from typing import Any

import torch
from torch import Tensor

Rows = list[list[int]]  # of token ids


def visible_slots(rows: Rows, size: int, device: torch.device) -> Tensor:
    """The mask of slots: false at a row's padding, true at its tokens and later ones. It has `size`
    columns, or without a size those of the tokens."""
    longest = max(map(len, rows))

    starts_B1 = torch.tensor([[longest - len(row)] for row in rows], device=device)
    return torch.arange(size or longest, device=device) >= starts_B1


def drop_older_half(state: Any) -> None:
    """Let rows longer than the context continue with their newer half, which is read again into
    the last slots in use. The other rows stay as they are: for them the cache keeps what fits.

    With a context of 128, a row of 129 ids keeps 64. If it is alone, 65 slots are dropped, and the
    63 ids before its newest are read into those that are left; the next step reads the newest."""
    context = state.model.context_length
    half = context // 2 or 1

    full = [number for number, row in enumerate(state.rows) if len(row) > context]
    for number in full:
        del state.rows[number][:-half]

    # of each row all but the newest id has been read, and the next step reads that
    n_read = max(map(len, state.rows)) - 1
    state.caches.keep(context - n_read, context)

    if state.visible is not None:
        state.visible.copy_(visible_slots(state.rows, state.size, state.prompts_BT.device))

    caches = state.model.new_caches(half - 1)
    if half > 1:
        unread = [state.rows[number][:-1] for number in full]
        state.hidden(state.prompts_BT.new_tensor(unread), full, caches=caches)

    state.caches.overwrite_rows(full, caches)
