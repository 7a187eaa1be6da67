"""Weight initialization: the standard deviation of every matrix of a new model."""

import math
from collections import Counter
from typing import Any

from torch import nn

from model.attention import MultiHeadAttention
from model.embedding import Head

# A standard deviation, or the name of a rule, for each type of matrix. `tied` is an embedding that
# is also the head; `out` is a matrix that writes into the residual stream.
# fmt: off
TYPES = (      "embedding", "tied",   "hidden",      "out",      "head")
SCHEMES = {
    "gpt2":    (0.02,       0.02,     0.02,          "by_depth", 0.02),
    "bert":    (0.02,       0.02,     0.02,          0.02,       0.02),
    "t5":      (1.0,        "fan_in", "fan_in",      "fan_in",   "fan_in"),
    "vaswani": ("fan_in",   "fan_in", "xavier",      "xavier",   "fan_in"),
    "modern":  (1.0,        0.02,     "half_fan_in", 0.0,        0.0),
}
# fmt: on

# functions of (rows, columns) and the number of sub-layers that write into the same residual stream
RULES = {
    "by_depth": lambda shape, n_residual_writes: 0.02 * n_residual_writes**-0.5,
    "fan_in": lambda shape, n_residual_writes: shape[1] ** -0.5,
    "half_fan_in": lambda shape, n_residual_writes: 0.5 * shape[1] ** -0.5,
    "xavier": lambda shape, n_residual_writes: math.sqrt(2 / sum(shape)),
}


def initialize_weights(model: Any, scheme: str) -> None:
    """Draw every matrix by the scheme, and set its bias to zero. Other parameters stay as they are.
    Then queries are scaled by query_gain, which is 1 for the usual scale of scores, and a part with
    a method reset() sets its own weights."""
    stds: dict = dict(zip(TYPES, SCHEMES[scheme], strict=True))
    matrices = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
    }

    # the first four parts of a name are a sub-layer, such as stack.blocks.0.ffn, which writes once
    # even if it has several experts
    writers = {tuple(name.split(".")[:4]) for name in matrices if name.endswith(".out")}
    n_residual_writes = Counter(stack for stack, *_ in writers)

    for name, matrix in matrices.items():
        if name == "head.map" and model.head.tie_weights:
            continue
        std = stds.get(type_of(name, matrix, model.head), 0.02)
        if std in RULES:
            stack = name.split(".")[0]
            std = RULES[std](matrix.weight.shape[-2:], n_residual_writes[stack])

        nn.init.normal_(matrix.weight, std=std)
        if isinstance(matrix, nn.Linear) and matrix.bias is not None:
            nn.init.zeros_(matrix.bias)

    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.query.weight.data *= module.query_gain
        if hasattr(module, "reset"):
            module.reset()


def type_of(name: str, matrix: nn.Module, head: Head) -> str:
    """The type of a matrix; "position", for positions and segments, is in no scheme."""
    if name == "head.map":
        return "head"

    # a tied T5 keeps std 1: its head scales the hidden states down instead
    if matrix.weight is head.map.weight and head.scale is None:
        return "tied"
    if name.endswith("embedding.table"):
        return "embedding"
    if isinstance(matrix, nn.Embedding):
        return "position"
    return "out" if name.endswith(".out") else "hidden"
