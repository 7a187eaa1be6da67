"""Prompt: text becomes the ids that a model has learned to see, and an encoder's masks become predictions."""

import re
from functools import cache

import torch

from data.tokenizers.tokenizer import load_hf_tokenizer
from model.generate.decode import check_token_rows, left_pad

MASK = "[MASK]"
TOP_K = 5


@cache
def mask_pattern(mask, tokenizer_json):
    """[MASK], or the mask as an imported tokenizer writes it, with the white space that this mask absorbs."""
    own = None
    if mask is not None and tokenizer_json is not None:
        own = load_hf_tokenizer(tokenizer_json).get_added_tokens_decoder().get(mask)
    if own is None:
        return re.compile(re.escape(MASK))
    before, after = r"(?:(?<!\s)\s+)?" if own.lstrip else "", r"\s*" if own.rstrip else ""
    return re.compile(f"{before}(?:{re.escape(MASK)}|{re.escape(own.content)}){after}")


def encode_prompt(text, tokenizer, context_length, slide, template):
    """The ids of a text in its template. [MASK] becomes the mask token, the sentinels of span corruption in
    turn, or, for other models, ordinary text."""
    if any("\ud800" <= character <= "\udfff" for character in text):  # a byte of argv that is not text
        raise ValueError("the prompt is not UTF-8")
    specials, mask = tokenizer.specials, tokenizer.specials.get("mask")
    pieces = mask_pattern(mask, tokenizer.text).split(text)
    count = len(pieces) - 1
    sentinels = [i for name, i in specials.items() if name.startswith("sentinel")]
    if mask is None and sentinels and count > len(sentinels):
        raise ValueError(f"the prompt has {count} {MASK}; this run was trained with up to {len(sentinels)}")
    marks = sentinels[:count] if mask is None else [mask] * count
    first, *rest = (tokenizer.encode(piece).tolist() for piece in (pieces if marks else [text]))
    ids = first + [i for mark, piece in zip(marks, rest, strict=True) for i in (mark, *piece)]
    if not ids:
        raise ValueError("the prompt is empty")
    before, after = template
    room = context_length - len(before) - len(after)
    if len(ids) > room and not (slide and room > 0):
        n = len(ids) + context_length - room
        raise ValueError(f"the prompt has {n} tokens; the context length is {context_length} (see --slide)")
    if lost := len(marks) - sum(i in marks for i in ids[-room:]):
        raise ValueError(f"--slide keeps the last {room} tokens and loses {lost} {MASK}: shorten the prompt")
    return [*before, *ids[-room:], *after]


@torch.inference_mode()
def fill_masks(model, rows, mask):
    """For each row (its ids with masks replaced by the most likely token, the top predictions for each mask
    as (ids, log-probabilities))."""
    check_token_rows("prompt", rows, model)
    tokens, visible = left_pad(rows, model)
    logprobs_BTV = model(tokens, visible=visible).float().log_softmax(-1)
    for row, logprobs_TV in zip(rows, logprobs_BTV, strict=True):
        masked = torch.tensor(row) == mask
        best = logprobs_TV[-len(row) :].cpu()[masked].topk(min(TOP_K, logprobs_TV.shape[-1]))
        top_ids = iter(best.indices[:, 0].tolist())
        ids = [next(top_ids) if i == mask else i for i in row]
        yield ids, list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
