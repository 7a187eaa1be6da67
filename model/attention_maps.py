"""Maps: who looks at whom. The attention weights of one text, a row of pictures for each layer, a column for
each head."""

import warnings
from typing import NamedTuple

import torch

from model.attend import record_attention

LEGIBLE = 48  # names that fit along a picture; of more tokens every second, third ... is named


class AttentionMap(NamedTuple):
    name: str
    asking: list  # ids of the text that looks, down the picture
    asked: list  # ids of the text it looks at, along it
    weights_HTS: torch.Tensor


@torch.inference_mode()
def attention_maps(model, texts):
    """The weights in every layer of one forward pass over these texts, ids under the names of its
    arguments."""
    device = next(model.parameters()).device
    with record_attention() as maps:
        model(**{name: torch.tensor([ids], device=device) for name, ids in texts.items()})
    tokens, source = texts["tokens"], texts.get("source")
    if source is None:
        kinds = [(f"layer {i + 1}", tokens, tokens) for i in range(len(model.stack.blocks))]
    else:
        kinds = [(f"encoder {i + 1}", source, source) for i in range(len(model.encoder.blocks))]
        for i in range(len(model.decoder.blocks)):
            kinds += [(f"decoder {i + 1}", tokens, tokens), (f"decoder {i + 1} to source", tokens, source)]
    if len(kinds) != len(maps):
        raise ValueError("this model's attention makes weights of its own, which no map can show")
    return [
        AttentionMap(*kind, weights_BHTS[0].cpu()) for kind, weights_BHTS in zip(kinds, maps, strict=True)
    ]


def draw_maps(attention_maps, show, picture):
    """show(ids) is a token's name."""
    from matplotlib.figure import Figure

    columns = max(len(layer.weights_HTS) for layer in attention_maps)
    figure = Figure(figsize=(2.6 * columns, 2.6 * len(attention_maps)), layout="constrained")
    grid = figure.subplots(len(attention_maps), columns, squeeze=False)
    for row, layer in zip(grid, attention_maps, strict=True):
        for axes in row[len(layer.weights_HTS) :]:
            axes.axis("off")
        for head, (axes, weights_TS) in enumerate(zip(row, layer.weights_HTS.numpy(), strict=False)):
            axes.imshow(weights_TS, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"{layer.name}, head {head + 1}", fontsize=7)
            name_ticks(axes.set_xticks, [show([i]) for i in layer.asked], rotation=90)
            name_ticks(axes.set_yticks, [show([i]) for i in layer.asking], rotation=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it
        figure.savefig(picture, dpi=110)


def name_ticks(set_ticks, names, rotation):
    every = -(-len(names) // LEGIBLE)
    shown = [repr(name).replace("$", r"\$") for name in names]
    set_ticks(range(0, len(names), every), shown[::every], rotation=rotation, fontsize=6)
