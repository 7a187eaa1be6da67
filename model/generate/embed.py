"""Embed: an encoder turns each text into one vector."""

from typing import Any, Literal

import torch

from model.generate.decode import Rows, left_pad

Pooling = Literal["mean", "first"]


@torch.inference_mode()
def embed(model: Any, rows: Rows, pooling: Pooling) -> list[list[float]]:
    """The mean of the last hidden states of each row, or that of its first token."""
    tokens, visible = left_pad(rows, model)
    hidden_BTC = model.hidden(tokens, visible=visible).float()
    if visible is None:
        visible = torch.ones_like(tokens, dtype=torch.bool)
    pooled = visible if pooling == "mean" else visible & (visible.cumsum(-1) == 1)
    weights_BT = pooled / pooled.sum(-1, keepdim=True)
    return torch.einsum("btc,bt->bc", hidden_BTC, weights_BT).tolist()
