"""Filling: what an encoder takes to stand behind each mask."""

from typing import NamedTuple

import torch

from data.tokenizers.tokenizer import NO_TEMPLATE
from model.generate.decode import check_token_rows, left_pad

BEST = 5
MASK = "[MASK]"


class FilledMasks(NamedTuple):
    ids: list  # the text, each mask replaced by the likeliest word
    guesses: list  # for each mask the best (id, log of its probability), the likeliest first


@torch.inference_mode()
def fill_masks(model, rows, mask):
    check_token_rows(rows, model, "prompt")
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
    return FilledMasks(ids, [guess for guess, hidden in zip(guesses, masked, strict=True) if hidden])


def encode_prompt(text, tokenizer, context_length, slide=False, template=NO_TEMPLATE):
    """The ids of a text in its template, each [MASK] being what stood in such a place in training."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the prompt is not UTF-8") from None
    marks = mask_ids(text, tokenizer.specials)
    pieces = [tokenizer.encode(piece).tolist() for piece in (text.split(MASK) if marks else [text])]
    ids = pieces[0]
    for mark, piece in zip(marks, pieces[1:], strict=False):
        ids += [mark, *piece]
    if not ids:
        raise ValueError("the prompt is empty; expected at least one character")
    before, after = template
    room = context_length - len(before) - len(after)
    if len(ids) > room and not (slide and room > 0):
        raise ValueError(
            f"the prompt has {len(ids) + context_length - room} tokens and the model's context is {context_length}: "
            "shorten it, or keep its newest part with --slide"
        )
    if lost := len(marks) - sum(i in marks for i in ids[-room:]):
        raise ValueError(
            f"--slide keeps the newest {room} tokens and loses {lost} {MASK}: shorten the prompt"
        )
    return [*before, *ids[-room:], *after]


def mask_ids(text, specials):
    count = text.count(MASK)
    if "mask" in specials:
        return [specials["mask"]] * count
    marks = [i for name, i in specials.items() if name.startswith("sentinel")]
    if marks and count > len(marks):
        raise ValueError(f"the prompt has {count} {MASK}; this run has learned to fill in up to {len(marks)}")
    return marks[:count]
