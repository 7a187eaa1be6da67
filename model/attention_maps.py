"""Attention maps: the weights of one forward pass, with a row per layer and a column per head."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model import attention
from model.attend import attend, attention_weights
from model.attention import Attention

MAX_TICKS = 48  # labels that fit on an axis; with more tokens, only every second, third ... has one


class AttentionMap(NamedTuple):
    name: str  # of the module
    queries: list[int]  # token ids along the vertical axis
    keys: list[int]  # token ids along the horizontal axis
    weights_HTS: Tensor


@torch.inference_mode()
def attention_maps(model: Any, inputs: dict[str, list[int]]) -> list[AttentionMap]:
    """The map of every layer. `inputs` maps the model's argument names to token ids."""
    weights = []

    def record(*args: Any, dropout: float, **options: Any) -> Tensor:
        """attend(q, k, v, mask, ...), which also keeps the weights of its only row."""
        q_BHTD, k_BGSD, _, mask = args
        weights.append(attention_weights(q_BHTD, k_BGSD, mask, **options)[0].float().cpu())
        return attend(*args, **options)

    device = next(model.parameters()).device
    try:
        attention.attend = record  # type: ignore[assignment]
        model(**{name: torch.tensor([ids], device=device) for name, ids in inputs.items()})
    finally:
        attention.attend = attend

    names = [name for name, module in model.named_modules() if isinstance(module, Attention)]
    names.sort(key=lambda name: not name.startswith("encoder"))  # as in the forward pass
    if len(names) != len(weights):
        raise ValueError("this model's attention computes its weights itself: none can be shown")

    maps = []
    source = inputs.get("source", [])
    for name, weights_HTS in zip(names, weights, strict=True):
        queries = source if name.startswith("encoder") else inputs["tokens"]
        keys = source if name.endswith("cross") else queries
        maps.append(AttentionMap(name, queries, keys, weights_HTS))
    return maps


def draw_maps(maps: list[AttentionMap], decode: Callable[[list[int]], str], path: Path) -> None:
    """Save the maps as an image; decode(ids) gives the label of a token."""
    from matplotlib.figure import Figure

    columns = max(len(layer.weights_HTS) for layer in maps)
    figure = Figure(figsize=(2.6 * columns, 2.6 * len(maps)), layout="constrained")
    grid = figure.subplots(len(maps), columns, squeeze=False)

    for row, layer in zip(grid, maps, strict=True):
        for axes in row[len(layer.weights_HTS) :]:
            axes.axis("off")
        for head, weights_TS in enumerate(layer.weights_HTS.numpy()):
            axes = row[head]
            image = axes.imshow(weights_TS, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"{layer.name}, head {head + 1}", fontsize=7)
            axes.set(xlabel="key", ylabel="query")
            name_ticks(axes.set_xticks, [decode([i]) for i in layer.keys], rotation=90)
            name_ticks(axes.set_yticks, [decode([i]) for i in layer.queries], rotation=0)

    figure.colorbar(image, ax=grid, label="attention weight", fraction=0.02)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box
        figure.savefig(path, dpi=110)


def name_ticks(set_ticks: Callable[..., Any], names: list[str], rotation: int) -> None:
    step = -(-len(names) // MAX_TICKS)
    labels = [repr(name).replace("$", r"\$") for name in names[::step]]
    set_ticks(range(0, len(names), step), labels, rotation=rotation, fontsize=6)
