"""Filling: what an encoder takes to stand behind each mask."""

from typing import NamedTuple

import torch

from model.generate import check_texts, left_pad

BEST = 5


class Filled(NamedTuple):
    ids: list  # the text, each mask replaced by the likeliest word
    guesses: list  # for each mask the best (id, log of its probability), the likeliest first


@torch.inference_mode()
def fill(model, rows, mask):
    check_texts(rows, model, "prompt")
    tokens, visible = left_pad(rows, model)
    logprobs = model(tokens, visible=visible).float().log_softmax(-1)
    return [filled(row, logprobs[i, -len(row) :], mask) for i, row in enumerate(rows)]


def filled(row, logprobs, mask):
    best = logprobs.topk(min(BEST, logprobs.shape[-1]))
    guesses = [
        list(zip(ids, shares, strict=True))
        for ids, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    masked = [i == mask for i in row]
    ids = [guess[0][0] if hidden else i for i, guess, hidden in zip(row, guesses, masked, strict=True)]
    return Filled(ids, [guess for guess, hidden in zip(guesses, masked, strict=True) if hidden])
