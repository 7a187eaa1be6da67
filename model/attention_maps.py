"""Attention maps: the weights of one forward pass, with a row per layer and a column per head."""

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.attend import Mask, attention_weights
from model.attention import Attention

MAX_LABELS = 500  # along a side of an image
LABEL_INCHES = 0.11

Inputs = dict[str, list[int]]  # token ids, by the name of the model's argument


class AttentionMap(NamedTuple):
    name: str  # such as "layer 1" or "decoder layer 1 cross"
    queries: list[int]  # token ids along the vertical axis
    keys: list[int]  # token ids along the horizontal axis
    weights_HTS: Tensor


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that gets the weights of each attention as the model computes it. They are computed
    once more here, because fused kernels never hold them."""
    recorded: dict[str, Tensor] = {}

    def record(name: str, layer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        options: Any = {"scale": layer.scale, "logit_softcap": layer.logit_softcap}
        recorded[name] = attention_weights(q.float(), k.float(), mask, **options)[0].cpu()
        return Attention.attend(layer, q, k, v, mask)

    for path, layer in model.named_modules():
        # a class with an attend of its own has other weights
        if isinstance(layer, Attention) and type(layer).attend is Attention.attend:
            name = re.sub(r"blocks.(\d+)", lambda match: f"layer {int(match[1]) + 1}", path)
            name = name.replace(".", " ").removeprefix("stack ").removesuffix(" attention")
            vars(layer)["attend"] = partial(record, name, layer)  # instead of the method
    try:
        with torch.inference_mode():
            yield recorded
    finally:
        for layer in model.modules():
            vars(layer).pop("attend", None)
    if not recorded:
        raise ValueError("this model's attention computes its weights itself: none can be shown")


def to_tensors(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: torch.tensor([ids], device=device) for name, ids in inputs.items()}


def attention_maps(model: nn.Module, inputs: Inputs) -> list[AttentionMap]:
    """The map of every layer."""
    with recorded_weights(model) as weights:
        model(**to_tensors(model, inputs))

    maps = []
    source = inputs.get("source", [])
    for name, weights_HTS in weights.items():
        queries = source if name.startswith("encoder") else inputs["tokens"]
        keys = source if name.endswith("cross") else queries
        maps.append(AttentionMap(name, queries, keys, weights_HTS))
    return maps


def token_labels(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """How each token is written: a special token as in a prompt, others as Python strings, where \\xe2
    is a byte that is only part of a character."""
    labels = tokenizer.special_texts()
    for i in {*ids} - labels.keys():
        text = tokenizer.decode_bytes([i] if i < tokenizer.n_ordinary else []).decode(
            "utf-8", "surrogateescape"
        )
        labels[i] = repr(text).replace("\\udc", "\\x")
    return labels


def draw_maps(
    maps: list[AttentionMap],
    tokenizer: Any,
    path: Path,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Save the maps as an image; of one layer or head, if it is given: they are counted from 1."""
    from matplotlib.figure import Figure

    first = head or 1
    rows = [
        one._replace(weights_HTS=one.weights_HTS[first - 1 : head])
        for one in maps
        if not layer or f"layer {layer} " in f"{one.name} "
    ]
    columns = max((len(one.weights_HTS) for one in rows), default=0)
    if columns == 0:
        last = f"{maps[-1].name}, head {len(maps[-1].weights_HTS)}"
        raise ValueError(f"--layer or --head is too high: the last map is of {last}")

    longest = max(len(ids) for one in rows for ids in (one.queries, one.keys))
    step = 1 + longest * max(len(rows), columns) // MAX_LABELS
    side = 1 + max(1.6, LABEL_INCHES * longest / step)
    figure = Figure(figsize=(side * columns + 1, side * len(rows)), layout="constrained")

    def label(axis: Any, ids: list[int]) -> None:
        labels = token_labels(tokenizer, ids)
        shown = [f"{labels[i]:.20}" for i in ids[::step]]
        axis.set_ticks(range(0, len(ids), step), shown, fontsize=6, parse_math=False)

    for row, one in enumerate(rows):
        for number, weights_TS in enumerate(one.weights_HTS.numpy(), first):
            axes = figure.add_subplot(len(rows), columns, row * columns + number - first + 1)
            image = axes.imshow(weights_TS, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"{one.name}, head {number}", fontsize=7)
            axes.set(xlabel="key", ylabel="query")
            label(axes.xaxis, one.keys)
            label(axes.yaxis, one.queries)
            axes.tick_params("x", rotation=90)

    figure.colorbar(image, ax=figure.axes, label="attention weight", fraction=0.02)
    if step > 1:
        figure.suptitle(f"every {step}th token has a label; --layer and --head leave room for more")
    with warnings.catch_warnings(action="ignore"):  # of a character that the font lacks
        figure.savefig(path, dpi=110)
