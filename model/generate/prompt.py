"""Prompt: text becomes the ids that a model has learned to see, and an encoder's masks become predictions."""

import itertools
import json
from functools import lru_cache

import torch

from data.tokenizers.limits import as_tokenizer_error
from data.tokenizers.tokenizer import load_hf_tokenizer
from model.generate.decode import check_token_rows, left_pad

MASK = "[MASK]"
TOP_K = 5


@lru_cache(maxsize=1)
def marking_tokenizer(tokenizer_json, marks):
    """(a tokenizer that finds these special tokens in a text, or None; {id: its name})."""
    spec, names = (
        json.loads(tokenizer_json),
        map(load_hf_tokenizer(tokenizer_json).id_to_token, marks),
    )
    names = dict(zip(marks, names, strict=True))
    for token in (tokens := spec.get("added_tokens") or []):
        token["special"] = token["content"] not in names.values() and token["special"]
    is_added = {token["content"] for token in tokens}.issuperset(names.values())
    return (load_hf_tokenizer(json.dumps(spec)), names) if is_added else (None, names)


def encode_marks(text, tokenizer, marks):
    """The ids of a text with marks in place of [MASK]. An imported tokenizer also decides which white space
    belongs to a mark, and how the text behind it begins."""
    pieces = text.split(MASK) if marks else [text]
    library, names = (
        marking_tokenizer(tokenizer.text, tuple(marks)) if tokenizer.text and marks else (None, {})
    )
    marks = itertools.islice(itertools.cycle(marks), len(pieces) - 1)
    if library:
        written = (
            name + piece for name, piece in zip(map(names.get, marks), pieces[1:], strict=True)
        )
        with as_tokenizer_error(f"tokenizer.json cannot encode {text[:60]!r}"):
            return library.encode("".join([pieces[0], *written]), add_special_tokens=False).ids
    first, *rest = (tokenizer.encode(piece).tolist() for piece in pieces)
    return first + [i for mark, ids in zip(marks, rest, strict=True) for i in (mark, *ids)]


def encode_prompt(text, tokenizer, context_length, slide, template):
    """The ids of a text in its template. [MASK] becomes the mask token, the sentinels of span corruption in
    turn, or, for other models, ordinary text."""
    if any(
        "\ud800" <= character <= "\udfff" for character in text
    ):  # a byte of argv that is not text
        raise ValueError("the prompt is not UTF-8")
    mask, count = tokenizer.specials.get("mask"), text.count(MASK)
    sentinels = [i for name, i in tokenizer.specials.items() if name.startswith("sentinel")]
    if mask is None and sentinels and count > len(sentinels):
        raise ValueError(
            f"the prompt has {count} {MASK}; this run was trained with up to {len(sentinels)}"
        )
    marks = sentinels[:count] if mask is None else [mask]
    ids = encode_marks(text, tokenizer, marks)
    if not ids:
        raise ValueError("the prompt is empty")
    before, after = template
    room = context_length - len(before) - len(after)
    if len(ids) > room and not (slide and room > 0):
        n = len(ids) + context_length - room
        raise ValueError(
            f"the prompt has {n} tokens; the context length is {context_length} (see --slide)"
        )
    if lost := sum(i in marks for i in ids[:-room]):
        raise ValueError(
            f"--slide keeps the last {room} tokens and loses {lost} {MASK}: shorten the prompt"
        )
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
