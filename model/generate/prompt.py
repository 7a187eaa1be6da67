"""Prompt: text becomes the ids that a model has learned to see, and masks become predictions."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import torch
from torch import nn

from data.tokenizers.tokenizer import HubTokenizer, Tokenizer
from model.generate.decode import Rows, left_pad

MASK = "[MASK]"
TOP_K = 5


def encode_marks(text: str, tokenizer: Tokenizer, marks: Sequence[int]) -> list[int]:
    """The ids of a text with these marks, in turn, in place of [MASK]. An imported tokenizer
    decides which white space belongs to a mark, and how the text behind it begins."""
    first, *rest = text.split(MASK) if marks else [text]
    if marks and isinstance(tokenizer, HubTokenizer):
        for mark, piece in zip(cycle(marks), rest, strict=False):
            first += tokenizer.backend.id_to_token(mark) + piece
        return tokenizer.encode_specials(first)[0]

    ids = tokenizer.encode(first).tolist()
    for mark, piece in zip(cycle(marks), rest, strict=False):
        ids += [mark, *tokenizer.encode(piece).tolist()]
    return ids


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
    count = 0 if special else text.count(MASK)
    sentinels = [i for name, i in tokenizer.specials.items() if name.startswith("sentinel")]
    before, after = ([], []) if special else template

    if around and count:
        first, *marks, last = [tokenizer.specials[name] for name in around]
        before, after = [*before, first], [last, *after]
        if count != len(marks):
            raise ValueError(f"the prompt has {count} {MASK}; this run needs {len(marks)}")
    elif "mask" in tokenizer.specials:
        marks = [tokenizer.specials["mask"]]
    elif count > len(sentinels) > 0:
        known = f"this run was trained with up to {len(sentinels)}"
        raise ValueError(f"the prompt has {count} {MASK}; {known}")
    else:
        marks = sentinels[:count]

    if special:
        ids, _ = tokenizer.encode_specials(text)
    else:
        ids = encode_marks(text, tokenizer, marks)
    room = context_length - len(before) - len(after)
    if len(ids) > room and not slide:
        n = len(ids) + context_length - room
        limit = f"the context length is {context_length}"
        raise ValueError(f"the prompt has {n} tokens; {limit} (see --slide)")
    return [*before, *ids[-room:], *after] if ids else []


class Filled(NamedTuple):
    ids: list[int]  # of the text, with the most likely token in place of each mask
    predictions: list[list[tuple[int, float]]]  # for each mask: (id, log-probability)


@torch.inference_mode()
def fill_masks(model: nn.Module, rows: Rows, specials: dict[str, int]) -> Iterator[Filled]:
    """Masks stand for text: no special token fills one in."""
    tokens, visible = left_pad(rows, model)
    logprobs_BTV = model(tokens, visible=visible).float().log_softmax(-1)
    logprobs_BTV[..., list(specials.values())] = -math.inf

    top = logprobs_BTV.topk(min(TOP_K, logprobs_BTV.shape[-1]))

    for number, row in enumerate(rows):
        ids = list(row)
        predictions = []
        for place, i in enumerate(row, tokens.shape[1] - len(row)):
            if i == specials["mask"]:
                best = top.indices[number, place].tolist()
                logprobs = top.values[number, place].tolist()
                ids[place - tokens.shape[1]] = best[0]
                predictions.append(list(zip(best, logprobs, strict=True)))
        yield Filled(ids, predictions)
