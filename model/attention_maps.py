"""Attention maps: the weights of one forward pass, with a row per layer and a column per head."""

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.attend import Mask, attention_weights
from model.attention import Attention

MAX_LABELS = 500  # along a side of an image
LABEL_INCHES = 0.11

Inputs = dict[str, list[int]]  # token ids, by the name of the model's argument


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield {"decoder layer 1 cross": (H, T, S)}, to which each attention that the model computes
    adds its weights. They are recomputed here, because fused kernels never hold them."""
    recorded = {}

    def record(name: str, layer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        recorded[name] = attention_weights(
            q.float(), k.float(), mask, scale=layer.scale, logit_softcap=layer.logit_softcap
        )[0].cpu()
        return Attention.attend(layer, q, k, v, mask)

    for path, layer in model.named_modules():
        # a class that overrides attend has other weights
        if isinstance(layer, Attention) and type(layer).attend is Attention.attend:
            name = re.sub(r"blocks.(\d+)", lambda match: f"layer {int(match[1]) + 1}", path)
            name = name.replace(".", " ").removeprefix("stack ").removesuffix(" attention")
            vars(layer)["attend"] = partial(record, name, layer)  # instead of the method

    try:
        yield recorded
    finally:
        for layer in model.modules():
            vars(layer).pop("attend", None)

    if not recorded:
        raise ValueError("this model's attention overrides attend(): its weights cannot be shown")


def to_tensors(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    device = next(model.parameters()).device
    return {name: torch.tensor([ids], device=device) for name, ids in inputs.items()}


@torch.inference_mode()
def attention_maps(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """The weights of every layer, with the names of recorded_weights."""
    with recorded_weights(model) as weights:
        model(**to_tensors(model, inputs))
    return weights


def token_labels(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """How each token is written: a special token as in a prompt, others as Python strings, in which
    \\xe2 is a byte that is only part of a character."""
    labels = tokenizer.special_texts()

    for i in {*ids} - labels.keys():
        text = tokenizer.decode([i])
        if "\ufffd" in text:  # a part of a character
            if tokenizer.text:  # imported: as its vocabulary has it
                text = tokenizer.backend.id_to_token(i)
            else:
                text = tokenizer.decode_bytes([i]).decode("utf-8", "surrogateescape")

        labels[i] = repr(text).replace("\\udc", "\\x")
    return labels


def draw_maps(maps: dict[str, Tensor], inputs: Inputs, tokenizer: Any, path: Path) -> None:
    """Save the maps as an image, whose size grows with the number of tokens."""
    from matplotlib.figure import Figure

    columns = max(map(len, maps.values()))
    longest = max(max(weights_HTS.shape) for weights_HTS in maps.values())
    step = 1 + longest * max(len(maps), columns) // MAX_LABELS
    side = 1 + max(1.6, LABEL_INCHES * longest / step)
    figure = Figure(figsize=(side * columns + 1, side * len(maps)), layout="constrained")

    def label(axis: Any, ids: list[int]) -> None:
        labels = token_labels(tokenizer, ids)
        shown = [f"{labels[i]:.20}" for i in ids[::step]]
        axis.set_ticks(range(0, len(ids), step), shown, fontsize=6, parse_math=False)

    for row, (name, weights_HTS) in enumerate(maps.items()):
        queries = inputs["source" if name.startswith("encoder") else "tokens"]
        keys = inputs["source"] if name.endswith("cross") else queries

        for head, weights_TS in enumerate(weights_HTS.numpy(), 1):
            axes = figure.add_subplot(len(maps), columns, row * columns + head)
            image = axes.imshow(weights_TS, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"{name}, head {head}", fontsize=7)
            axes.set(xlabel="key", ylabel="query")
            label(axes.xaxis, keys)
            label(axes.yaxis, queries)
            axes.tick_params("x", rotation=90)

    figure.colorbar(image, ax=figure.axes, label="attention weight", fraction=0.02)
    if step > 1:
        figure.suptitle(f"one token in {step} has a label; the page of --explain has all")

    with warnings.catch_warnings(action="ignore"):  # about characters that the font lacks
        figure.savefig(path, dpi=110)
