"""Encoder: what it finds for the masks of a text, or the vector of a text."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch

from model.generate.decode import Rows, left_pad
from model.generate.prompt import MASK
from model.generate.sampler import Row, Sampler

Pooling = Literal["mean", "first"]
TOP_K = 5


def fill(sampler: Sampler, rows: list[Row]) -> Iterator[tuple[Row, str]]:
    """Each text with its masks filled in, and the top predictions for each mask."""
    decode = sampler.tokenizer.decode
    specials = sampler.tokenizer.specials
    if sampler.run.is_headless:
        raise ValueError("this encoder was imported without a head; --embed gives vectors")
    mask = specials["mask"]
    for row in rows:
        if mask not in row.ids:
            raise ValueError(f"an encoder fills in {MASK}; there is none in {row.prompt!r:.60}")

    found = fill_masks(sampler.model, [row.ids for row in rows], specials)
    for row in rows:
        filled = list(row.ids)
        predictions = ""
        while mask in filled:
            ids, logprobs = next(found)
            filled[filled.index(mask)] = ids[0]
            row.stream.push(ids[0], logprobs[0])
            pairs = zip(ids, logprobs, strict=True)
            named = ", ".join(f"{decode([i])!r} {math.exp(p):.3f}" for i, p in pairs)
            predictions += f"  {MASK} {len(row.stream.ids)}: {named}\n"
        row.stream.text = decode(filled)
        yield row, f"{row.stream.text}\n{predictions}"


@torch.inference_mode()
def fill_masks(
    model: Any, rows: Rows, specials: dict[str, int]
) -> Iterator[tuple[list[int], list[float]]]:
    """The most likely ids for each mask, row after row, and their log-probabilities. Masks stand
    for text: no special token fills one in."""
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


def vectors(sampler: Sampler, rows: list[Row], pooling: Pooling) -> Iterator[tuple[Row, str]]:
    """A line of JSON for each text."""
    found = embed(sampler.model, [row.ids for row in rows], pooling)
    for row, vector in zip(rows, found, strict=True):
        line = {"text": row.prompt, "embedding": vector}
        yield row, json.dumps(line) + "\n"


@torch.inference_mode()
def embed(model: Any, rows: Rows, pooling: Pooling) -> list[list[float]]:
    """The mean of the last hidden states of each row, or that of its first token."""
    tokens, visible = left_pad(rows, model)
    hidden_BTC = model.hidden(tokens, visible=visible).float()

    vectors = []
    for row, hidden_TC in zip(rows, hidden_BTC, strict=True):
        own = hidden_TC[-len(row) :]  # the padding is before them
        vectors.append(own.mean(0) if pooling == "mean" else own[0])
    return torch.stack(vectors).tolist()
