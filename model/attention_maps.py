"""Attention maps: the weights of one forward pass, with a row per layer and a column per head."""

import warnings
from functools import partial
from typing import NamedTuple

import torch

from model.attend import attention_weights
from model.attention import Attention

MAX_TICKS = 48  # labels that fit on an axis; with more tokens, only every second, third ... has one


class AttentionMap(NamedTuple):
    name: str
    queries: list  # token ids along the vertical axis
    keys: list  # token ids along the horizontal axis
    weights_HTS: torch.Tensor


def record(module, records, q_BHTD, k_BGSD, v_BGSE, mask):
    """module.attend, which also appends its weights to `records`."""
    options = {"scale": module.scale, "logit_softcap": module.logit_softcap}
    records.append(attention_weights(q_BHTD, k_BGSD, mask, **options).float())
    return Attention.attend(module, q_BHTD, k_BGSD, v_BGSE, mask)


@torch.inference_mode()
def attention_maps(model, inputs):
    """The map of every layer. `inputs` maps the model's argument names to token ids."""
    device, records = next(model.parameters()).device, []
    # an attention that overrides `attend` computes weights of its own, which cannot be recorded
    modules = [m for m in model.modules() if getattr(type(m), "attend", None) is Attention.attend]
    try:
        for module in modules:
            module.attend = partial(record, module, records)
        model(**{name: torch.tensor([ids], device=device) for name, ids in inputs.items()})
    finally:
        for module in modules:
            del module.attend
    tokens, source = inputs["tokens"], inputs.get("source")
    if source is None:
        axes = [(f"layer {i + 1}", tokens, tokens) for i in range(len(model.stack.blocks))]
    else:
        axes = [(f"encoder {i + 1}", source, source) for i in range(len(model.encoder.blocks))]
        for i in range(len(model.decoder.blocks)):
            axes += [
                (f"decoder {i + 1}", tokens, tokens),
                (f"decoder {i + 1} to source", tokens, source),
            ]
    if len(axes) != len(records):
        raise ValueError(
            "this model's attention computes its weights itself, so they cannot be shown"
        )
    return [
        AttentionMap(*layer, weights[0].cpu()) for layer, weights in zip(axes, records, strict=True)
    ]


def draw_maps(attention_maps, decode, path):
    """Save the maps as an image; decode(ids) gives the label of a token."""
    from matplotlib.figure import Figure

    columns = max(len(layer.weights_HTS) for layer in attention_maps)
    figure = Figure(figsize=(2.6 * columns, 2.6 * len(attention_maps)), layout="constrained")
    grid = figure.subplots(len(attention_maps), columns, squeeze=False)
    for row, layer in zip(grid, attention_maps, strict=True):
        for axes in row[len(layer.weights_HTS) :]:
            axes.axis("off")
        for head, (axes, weights_TS) in enumerate(
            zip(row, layer.weights_HTS.numpy(), strict=False)
        ):
            image = axes.imshow(weights_TS, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"{layer.name}, head {head + 1}", fontsize=7)
            axes.set(xlabel="key", ylabel="query")
            name_ticks(axes.set_xticks, [decode([i]) for i in layer.keys], rotation=90)
            name_ticks(axes.set_yticks, [decode([i]) for i in layer.queries], rotation=0)
    figure.colorbar(image, ax=grid, label="attention weight", fraction=0.02)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # drawn as a box
        figure.savefig(path, dpi=110)


def name_ticks(set_ticks, names, rotation):
    step = -(-len(names) // MAX_TICKS)
    labels = [repr(name).replace("$", r"\$") for name in names[::step]]
    set_ticks(range(0, len(names), step), labels, rotation=rotation, fontsize=6)
