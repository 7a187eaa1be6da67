"""Weight initialization: the standard deviation of every matrix of a new model."""

import math
from collections import Counter
from typing import Any

from torch import nn

from model.attention import MultiHeadAttention

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

# from (rows, columns) and the number of matrices that write into the same residual stream
RULES = {
    "by_depth": lambda shape, n_residual_writes: 0.02 * n_residual_writes**-0.5,
    "fan_in": lambda shape, n_residual_writes: shape[1] ** -0.5,
    "half_fan_in": lambda shape, n_residual_writes: 0.5 * shape[1] ** -0.5,
    "xavier": lambda shape, n_residual_writes: math.sqrt(2 / sum(shape)),
}


def std_rule(name: str, matrix: nn.Module, model: Any, stds: dict[str, Any]) -> float | str:
    """The standard deviation of a matrix, or the name of its rule."""
    if name == "head.map":
        return stds["head"]
    # a head that scales its input can share an embedding of any std
    if matrix.weight is model.head.map.weight and model.head.scale is None:
        return stds["tied"]
    if name.endswith("embedding.table"):
        return stds["embedding"]
    if isinstance(matrix, nn.Embedding):
        return 0.02
    return stds["out" if name.endswith(".out") else "hidden"]


def initialize_weights(model: Any, scheme: str) -> None:
    """Draw every matrix by the scheme, with zero biases. Other parameters stay as they are."""
    if scheme not in SCHEMES:
        raise ValueError(f"model.init is {scheme!r}; choose one of: {', '.join(SCHEMES)}")
    stds = dict(zip(TYPES, SCHEMES[scheme], strict=True))
    matrices = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
    }
    # by stack, "blocks", number and sub-layer: all experts of one write together
    writers = {tuple(name.split(".")[:4]) for name in matrices if name.endswith(".out")}
    n_residual_writes = Counter(stack for stack, *_ in writers)

    for name, matrix in matrices.items():
        if name == "head.map" and model.head.tie_weights:
            continue
        std = std_rule(name, matrix, model, stds)
        if isinstance(std, str):
            std = RULES[std](matrix.weight.shape[-2:], n_residual_writes[name.split(".")[0]])
        nn.init.normal_(matrix.weight, std=std)
        if isinstance(matrix, nn.Linear) and matrix.bias is not None:
            nn.init.zeros_(matrix.bias)

    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.query.weight.data *= module.query_size
