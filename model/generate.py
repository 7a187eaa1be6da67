"""Generate: a prompt is read once, then each new token costs one step through the cache."""

from functools import partial

import torch

from model.build import fits


def left_pad(rows, model):
    """(tokens, visible); visible is None where nothing is padded."""
    longest, device = max(map(len, rows)), model.embedding.table.weight.device
    tokens = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    if all(len(row) == longest for row in rows):
        return tokens, None
    first = longest - torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) >= first


def check_texts(texts, model, what):
    """Token ids are checked where they enter, so that no forward pass need look at them."""
    words = model.embedding.table.num_embeddings
    if not isinstance(texts, list) or not texts or not all(isinstance(text, list) for text in texts):
        raise ValueError(f"{what}s must be lists of token ids in a list and are {str(texts)!r:.60}")
    for text in texts:
        if not text:
            raise ValueError(f"a {what} is empty; it needs at least one token")
        if odd := [i for i in text if not fits(i, int)]:
            raise ValueError(f"a {what} has {odd[0]!r}, which is no token id")
        if len(text) > model.context:
            raise ValueError(
                f"a {what} has {len(text)} tokens and the model's context is {model.context}: shorten it"
            )
        if not 0 <= min(text) <= max(text) < words:
            raise ValueError(f"a {what} has ids from {min(text)} to {max(text)}; the vocabulary has {words}")


def make_step(model, prompts, sources):
    """What both families do at each step, (tokens, visible, caches) -> hidden. A source is encoded here,
    once."""
    if model.training:
        raise ValueError("generate needs a model that is not training: call model.eval() first")
    if model.kind == "encoder":
        raise ValueError("an encoder fills in masked tokens and cannot continue a text")
    if (model.kind == "encoder_decoder") != (sources is not None):
        raise ValueError("sources go with an encoder_decoder, and an encoder_decoder with sources")
    check_texts(prompts, model, "prompt")
    if sources is None:
        return model.hidden
    check_texts(sources, model, "source")
    if len(sources) != len(prompts):
        raise ValueError(
            f"there are {len(sources)} sources and {len(prompts)} prompts; each source needs one"
        )
    tokens, visible = left_pad(sources, model)
    with torch.inference_mode():
        memory = model.encode(tokens, visible=visible)
    return partial(model.decode, memory=memory, memory_visible=visible)


def steps(model, step, rows, max_new_tokens, stop):
    caches, ended = None, [False] * len(rows)
    for _ in range(max_new_tokens):
        if caches is None or max(map(len, rows)) > model.context:
            newer = -(model.context // 2 or 1)
            rows = [row[newer:] if len(row) > model.context else row for row in rows]
            tokens, visible = left_pad(rows, model)
            caches = model.new_caches(model.context)
        with torch.inference_mode():
            hidden = step(tokens, visible=visible, caches=caches)
            tokens = model.head(hidden[:, -1:]).argmax(-1)
        ids = tokens[:, 0].tolist()
        rows = [[*row, i] for row, i in zip(rows, ids, strict=True)]
        if visible is not None:
            visible = torch.cat([visible, torch.ones_like(visible[:, :1])], 1)
        yield [None if end else i for end, i in zip(ended, ids, strict=True)]
        ended = [end or i == stop for end, i in zip(ended, ids, strict=True)]
        if all(ended):
            return


def generate(model, prompts, *, max_new_tokens, sources=None, stop=None):
    """Continue each prompt (a list of token ids), always with the likeliest token. An iterator over steps:
    one list each: a new id for each row, None for those that have written `stop`. A row's ids do not depend
    on the other rows.

    An encoder-decoder answers `sources`; its prompts are the beginnings of the answers, most often one start
    token. A row that reaches the context goes on with its newer half.
    """
    step, words = make_step(model, prompts, sources), model.embedding.table.num_embeddings
    if not fits(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a whole number from 1 on and is {max_new_tokens!r}")
    if stop is not None and not (fits(stop, int) and 0 <= stop < words):
        raise ValueError(f"stop must be an id of the vocabulary, below {words}, or None, and is {stop!r}")
    return steps(model, step, prompts, max_new_tokens, stop)
