"""Prompt: text becomes the ids that a model has learned to see, and masks become predictions."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from data.tokenizers.tokenizer import Tokenizer
from model.generate.decode import Rows, left_pad

MASK = "[MASK]"
TOP_K = 5
Prediction = list[tuple[int, float]]  # (id, log-probability), the most likely first


def encode_prompt(
    text: str,
    tokenizer: Tokenizer,
    context_length: int,
    slide: bool,
    template: Sequence[list[int]],
    around: Sequence[str] = (),
    special: bool = False,
) -> list[int]:
    """The ids of a text in its template, none for a text without any. [MASK] becomes the mask
    token, the sentinels of span corruption in turn, or, for other models, ordinary text; where an
    objective has special tokens around the pieces of a text, it becomes those between them. With
    `special`, the text has all of them written out."""
    before, after = ([], []) if special else template
    count = 0 if special else text.count(MASK)
    specials = tokenizer.specials
    marks = [specials[name] for name in specials if name.startswith("sentinel")]
    if around and count:
        first, *marks, last = [specials[name] for name in around]
        before, after = [*before, first], [last, *after]
    elif "mask" in specials:
        marks = [specials["mask"]] * count
    if count > len(marks) > 0 or (around and 0 < count < len(marks)):
        raise ValueError(f"the prompt has {count} {MASK}; this run knows {len(marks)}")

    marks = marks[:count]
    if special or (tokenizer.text and (marks or "mask" in specials)):
        # an imported tokenizer decides which white space belongs to a mark
        written = tokenizer.special_texts()
        for mark in marks:
            text = text.replace(MASK, written[mark], 1)
        ids, _ = tokenizer.encode_specials(text)
    else:
        begin, *pieces = text.split(MASK, len(marks))
        ids = tokenizer.encode(begin).tolist()
        for mark, piece in zip(marks, pieces, strict=True):
            ids += [mark, *tokenizer.encode(piece).tolist()]

    room = context_length - len(before) - len(after)
    if len(ids) > room and not slide:
        n = len(ids) + context_length - room
        limit = f"the context length is {context_length}"
        raise ValueError(f"the prompt has {n} tokens; {limit} (see --slide)")
    return [*before, *ids[-room:], *after] if ids else []


@torch.inference_mode()
def fill_masks(model: nn.Module, rows: Rows, specials: dict[str, int]) -> list[Prediction]:
    """The top predictions for each mask, row after row. Masks stand for text: no special token
    fills one in."""
    tokens, visible = left_pad(rows, model)
    is_mask = tokens == specials["mask"]
    if visible is not None:
        is_mask &= visible
    logprobs_NV = model(tokens, visible=visible)[is_mask].float().log_softmax(-1)
    logprobs_NV[:, list(specials.values())] = -math.inf

    top = logprobs_NV.topk(min(TOP_K, logprobs_NV.shape[-1]))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [list(zip(ids, logprobs, strict=True)) for ids, logprobs in pairs]
