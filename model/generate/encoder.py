"""Encoder: what it finds for the masks of a text, or the vector of a text."""

import json
import math
from collections.abc import Iterator
from typing import Literal

import torch

from model.generate.decode import left_pad
from model.generate.prompt import MASK
from model.generate.sampler import Row, Sampler

Pooling = Literal["mean", "first"]
TOP_K = 5


@torch.inference_mode()
def fill(sampler: Sampler, rows: list[Row]) -> Iterator[tuple[Row, str]]:
    """Each text with its masks filled in, and the top predictions for each mask. Masks stand for
    text: no special token fills one in."""
    decode = sampler.tokenizer.decode
    specials = sampler.tokenizer.specials
    if sampler.run.is_headless:
        raise ValueError("this encoder was imported without a head; --embed gives vectors")
    for row in rows:
        if specials["mask"] not in row.ids:
            raise ValueError(f"an encoder fills in {MASK}; there is none in {row.prompt!r:.60}")

    tokens, visible = left_pad([row.ids for row in rows], sampler.model)
    logits_BTV = sampler.model(tokens, visible=visible)
    for row, logits_TV in zip(rows, logits_BTV, strict=True):
        places = [place for place, i in enumerate(row.ids) if i == specials["mask"]]
        own_TV = logits_TV[-len(row.ids) :]  # the padding is before them
        logprobs_NV = own_TV[places].float().log_softmax(-1)
        logprobs_NV[:, list(specials.values())] = -math.inf
        top = logprobs_NV.topk(min(TOP_K, logprobs_NV.shape[-1]))

        filled = list(row.ids)
        predictions = ""
        best = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        for place, (ids, logprobs) in zip(places, best, strict=True):
            filled[place] = ids[0]
            row.stream.push(ids[0], logprobs[0])
            pairs = zip(ids, logprobs, strict=True)
            named = ", ".join(f"{decode([i])!r} {math.exp(p):.3f}" for i, p in pairs)
            predictions += f"  {MASK} {len(row.stream.ids)}: {named}\n"
        row.stream.text = decode(filled)
        yield row, f"{row.stream.text}\n{predictions}"


@torch.inference_mode()
def vectors(sampler: Sampler, rows: list[Row], pooling: Pooling) -> Iterator[tuple[Row, str]]:
    """A line of JSON for each text: the mean of its last hidden states, or that of its first
    token."""
    tokens, visible = left_pad([row.ids for row in rows], sampler.model)
    hidden_BTC = sampler.model.hidden(tokens, visible=visible).float()
    for row, hidden_TC in zip(rows, hidden_BTC, strict=True):
        own_TC = hidden_TC[-len(row.ids) :]  # the padding is before them
        vector = own_TC.mean(0) if pooling == "mean" else own_TC[0]
        line = {"text": row.prompt, "embedding": vector.tolist()}
        yield row, json.dumps(line) + "\n"
