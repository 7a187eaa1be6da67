"""Attention maps: the weights of one forward pass, with a row per layer and a column per head."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.attend import Mask, attention_weights
from model.attention import Attention


class AttentionMap(NamedTuple):
    name: str  # of the layer
    queries: list[int]  # token ids along the vertical axis
    keys: list[int]  # token ids along the horizontal axis
    weights_HTS: Tensor


@torch.inference_mode()
def attention_maps(model: nn.Module, inputs: dict[str, list[int]]) -> list[AttentionMap]:
    """The map of every layer. `inputs` maps the model's argument names to token ids."""
    source = inputs.get("source", [])
    maps = []

    def record(name: str, layer: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """What attend returns, which never holds the weights."""
        options = {"scale": layer.scale, "logit_softcap": layer.logit_softcap}
        weights_BHTS = attention_weights(q, k, mask, **options)
        queries = source if name.startswith("encoder") else inputs["tokens"]
        keys = source if name.endswith("cross") else queries
        maps.append(AttentionMap(name, queries, keys, weights_BHTS[0].float().cpu()))
        return Attention.attend(layer, q, k, v, mask)

    layers: list[Any] = []
    for name, module in model.named_modules():
        if getattr(type(module), "attend", None) is Attention.attend:
            layers.append(module)
            module.attend = partial(record, name, module)
    device = next(model.parameters()).device
    try:
        model(**{name: torch.tensor([ids], device=device) for name, ids in inputs.items()})
    finally:
        for layer in layers:
            del layer.attend
    if not maps:
        raise ValueError("this model's attention computes its weights itself: none can be shown")
    return maps


def save_maps(model: Any, tokenizer: Any, prompt: list[int], target: list[int], path: Path) -> None:
    """The maps of a prompt or, in an encoder-decoder, of a source and its target, as an image."""
    from matplotlib.figure import Figure

    def label(axis: Any, ids: list[int]) -> None:
        every = 1 + len(ids) // 48  # with more labels, they would overlap
        labels = [repr(tokenizer.decode_with_specials([i])) for i in ids[::every]]
        axis.set_ticks(range(0, len(ids), every), labels, fontsize=6, parse_math=False)

    inputs = {"tokens": prompt}
    if model.kind == "encoder_decoder":
        inputs = {"source": prompt, "tokens": target[:-1][: model.context_length]}
    maps = attention_maps(model, inputs)
    columns = max(len(layer.weights_HTS) for layer in maps)
    figure = Figure(figsize=(2.6 * columns, 2.6 * len(maps)), layout="constrained")

    for row, layer in enumerate(maps):
        for head, weights_TS in enumerate(layer.weights_HTS.numpy()):
            axes = figure.add_subplot(len(maps), columns, row * columns + head + 1)
            image = axes.imshow(weights_TS, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"{layer.name}, head {head + 1}", fontsize=7)
            axes.set(xlabel="key", ylabel="query")
            label(axes.xaxis, layer.keys)
            label(axes.yaxis, layer.queries)
            axes.tick_params("x", rotation=90)

    figure.colorbar(image, ax=figure.axes, label="attention weight", fraction=0.02)
    with warnings.catch_warnings(action="ignore"):  # of a character that the font lacks
        figure.savefig(path, dpi=110)
