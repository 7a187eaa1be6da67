"""Encoder: what it finds for the masks of a text, or the vector of a text."""

import json
import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from model.generate.decode import left_pad
from model.generate.prompt import MASK
from model.generate.sampler import Row, Sampler

Pooling = Literal["mean", "first"]
TOP_K = 5


@torch.inference_mode()
def fill(sampler: Sampler, rows: list[Row]) -> Iterator[tuple[Row, str]]:
    """Each text with its masks filled in, and the top predictions for each mask."""
    decode = sampler.tokenizer.decode
    specials = sampler.tokenizer.specials
    if sampler.run.is_headless:
        raise ValueError("this encoder was imported without a head; --embed gives vectors")
    for row in rows:
        if specials["mask"] not in row.ids:
            raise ValueError(f"an encoder fills in {MASK}; there is none in {row.prompt!r:.60}")

    for row, hidden_TC in last_hidden(sampler, rows):
        places = [place for place, i in enumerate(row.ids) if i == specials["mask"]]
        logprobs_NV = sampler.model.head(hidden_TC[places]).float().log_softmax(-1)
        # masks stand for text: no special token fills one in
        logprobs_NV[:, list(specials.values())] = -math.inf
        top = logprobs_NV.topk(TOP_K)

        filled = list(row.ids)
        predictions = ""
        for number, place in enumerate(places):
            ids = top.indices[number].tolist()
            logprobs = top.values[number].tolist()
            filled[place] = ids[0]
            row.stream.push(ids[0], logprobs[0])
            pairs = zip(ids, logprobs, strict=True)
            named = [f"{decode([i])!r} {math.exp(logprob):.3f}" for i, logprob in pairs]
            predictions += f"\n  {MASK} {number + 1}: {', '.join(named)}"
        row.stream.text = decode(filled)
        yield row, row.stream.text + predictions


@torch.inference_mode()
def vectors(sampler: Sampler, rows: list[Row], pooling: Pooling) -> Iterator[tuple[Row, str]]:
    """JSON for each text: the mean of its last hidden states, or that of its first token."""
    for row, hidden_TC in last_hidden(sampler, rows):
        vector = hidden_TC.float().mean(0) if pooling == "mean" else hidden_TC[0]
        yield row, json.dumps({"text": row.prompt, "embedding": vector.tolist()})


def last_hidden(sampler: Sampler, rows: list[Row]) -> Iterator[tuple[Row, Tensor]]:
    tokens, visible = left_pad([row.ids for row in rows], sampler.model)
    hidden_BTC = sampler.model.hidden(tokens, visible=visible)
    for row, hidden_TC in zip(rows, hidden_BTC, strict=True):
        yield row, hidden_TC[-len(row.ids) :]  # the padding is before them
