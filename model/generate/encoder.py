"""Encoder: predictions for the masks of a text, or the vector of a text; classifiers."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.nn.functional import normalize

from model.generate.decode import left_pad
from model.generate.marks import MASK

Pooling = Literal["mean", "first", "auto"]
# {pooling of sentence-transformers: here}; older folders have the longer names
POOLINGS: dict[str, Pooling] = {
    "mean": "mean",
    "cls": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
}
TOP_K = 5


def choose_pooling(name: Pooling, files: dict[str, str]) -> tuple[Pooling, bool]:
    """Returns (mean or first, whether to normalize). auto does what the files of an imported
    sentence-transformers folder say; without them, it is mean."""
    if name != "auto":
        return name, False

    modules = files.get("modules.json", "")
    options = json.loads(files.get("1_Pooling/config.json", '{"pooling_mode": "mean"}'))
    modes = [str(options.pop("pooling_mode", ""))]
    modes += [older for older in options if older.startswith("pooling_mode") and options[older]]
    mode = " and ".join(filter(None, modes))

    if mode not in POOLINGS or "Dense" in modules:
        raise ValueError(
            f"the imported model has {mode} pooling{' with dense layers' * ('Dense' in modules)}, "
            "which --embed auto does not have; choose mean or first"
        )
    return POOLINGS[mode], "Normalize" in modules


@torch.inference_mode()
def filled(sampler: Any, rows: list) -> Iterator[tuple[Any, str]]:
    """Yield each text with its masks filled in, and the top predictions for each mask. Masks stand
    for text, so no special token is predicted."""
    decode = sampler.tokenizer.decode
    specials = sampler.tokenizer.specials
    config = sampler.run.config
    is_imported = config.get("code") is None  # a run trained here has the code's hash

    if is_imported and config["model"]["head"].get("mlm_transform") is None:
        raise ValueError("this encoder was imported without a head; --embed gives vectors")

    mask = specials["mask"]
    for row in rows:
        if mask not in row.prompt_ids:
            raise ValueError(f"an encoder fills in {MASK}; there is none in {row.prompt!r:.60}")

    tokens, visible = left_pad([row.prompt_ids for row in rows], sampler.model)

    is_mask = tokens == mask
    if visible is not None:
        is_mask &= visible

    logits_NV = sampler.model(tokens, visible=visible)[is_mask]
    logprobs_NV = logits_NV.float().log_softmax(-1)
    logprobs_NV[:, list(specials.values())] = -math.inf

    top = logprobs_NV.topk(min(TOP_K, logprobs_NV.shape[-1]))
    found = zip(top.indices.tolist(), top.values.tolist(), strict=True)

    for row in rows:
        complete = list(row.prompt_ids)
        predictions = ""

        while mask in complete:
            ids, logprobs = next(found)
            complete[complete.index(mask)] = ids[0]
            row.stream.push(ids[0], logprobs[0])
            pairs = zip(ids, logprobs, strict=True)
            named = ", ".join(f"{decode([i])!r} {math.exp(p):.3f}" for i, p in pairs)
            predictions += f"  {MASK} {len(row.stream.ids)}: {named}\n"

        row.stream.text = decode(complete)
        yield row, f"{row.stream.text}\n{predictions}"


@torch.inference_mode()
def vectors(sampler: Any, rows: list) -> Iterator[tuple[Any, str]]:
    """Yield a line of JSON for each text: the mean of its last hidden states, or the one of its first
    token."""
    model = sampler.model
    pooling, normalizes = choose_pooling(sampler.options.embed, sampler.tokenizer.files)

    if model.classes and model.head.pooling and pooling == "first":
        raise ValueError("this classifier reads the mean of a text: choose --embed mean")

    tokens, visible = left_pad([row.prompt_ids for row in rows], model)
    hidden_BTC = model.hidden(tokens, visible=visible).float()

    found = []

    for row, hidden_TC in zip(rows, hidden_BTC, strict=True):
        own = hidden_TC[-len(row.prompt_ids) :]  # the padding is before them
        found.append(own.mean(0) if pooling == "mean" else own[0])

    vectors_BC = torch.stack(found)
    if normalizes:
        vectors_BC = normalize(vectors_BC)

    for row, vector in zip(rows, vectors_BC.tolist(), strict=True):
        row.stream.text = json.dumps({"text": row.prompt, "embedding": vector}) + "\n"
        yield row, row.stream.text


@torch.inference_mode()
def classified(sampler: Any, rows: list) -> Iterator[tuple[Any, str]]:
    """Yield a line for each text: the most likely classes, and their probabilities."""
    model = sampler.model
    tokens, visible = left_pad([row.prompt_ids for row in rows], model)
    hidden_BTC = model.hidden(tokens, visible=visible)

    for row, hidden_TC in zip(rows, hidden_BTC, strict=True):
        place = -len(row.prompt_ids) if model.kind == "encoder" else -1
        shares = model.head(hidden_TC[place]).float().softmax(-1).tolist()

        pairs = sorted(zip(model.classes, shares, strict=True), key=lambda pair: -pair[1])
        row.probabilities = dict(pairs)
        named = [f"{name} {share:.3f}" for name, share in row.probabilities.items()]
        yield row, "  ".join(named[:TOP_K]) + "\n"
