"""Attention maps: the weights of one forward pass, with a row per layer and a column per head."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from model.attend import Mask, attention_weights
from model.attention import Attention


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
