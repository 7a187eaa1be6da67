"""Encoder: predictions for the masks of a text, or the vector of a text."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch

from model.generate.decode import Rows, left_pad

Pooling = Literal["mean", "first"]
TOP_K = 5


@torch.inference_mode()
def fill_masks(
    model: Any, rows: Rows, specials: dict[str, int]
) -> Iterator[tuple[list[int], list[float]]]:
    """The most likely ids for each mask, row by row, and their log-probabilities. Masks stand for
    text, so no special token is predicted."""
    tokens, visible = left_pad(rows, model)
    is_mask = tokens == specials["mask"]
    if visible is not None:
        is_mask &= visible
    logits_NV = model(tokens, visible=visible)[is_mask]
    logprobs_NV = logits_NV.float().log_softmax(-1)
    logprobs_NV[:, list(specials.values())] = -math.inf
    vocab_size = logprobs_NV.shape[-1]
    top = logprobs_NV.topk(min(TOP_K, vocab_size))
    return zip(top.indices.tolist(), top.values.tolist(), strict=True)


@torch.inference_mode()
def embed(model: Any, rows: Rows, pooling: Pooling) -> list[list[float]]:
    """The mean of the last hidden states of each row, or the one of its first token."""
    tokens, visible = left_pad(rows, model)
    hidden_BTC = model.hidden(tokens, visible=visible).float()
    vectors = []
    for row, hidden_TC in zip(rows, hidden_BTC, strict=True):
        own = hidden_TC[-len(row) :]  # the padding is before them
        vectors.append(own.mean(0) if pooling == "mean" else own[0])
    return torch.stack(vectors).tolist()
