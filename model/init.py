"""Init: every weight of a new model is drawn here."""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch.nn as nn

from model.attention import MultiHeadAttention


class InitScheme(NamedTuple):
    """How widely each sort of matrix is drawn. `tied` is a table that is also the head, `out` what writes
    into the residual stream."""

    embedding: Callable
    tied: Callable
    hidden: Callable
    out: Callable
    head: Callable


# Standard deviations, from a weight's (rows, columns) and the number of writers into the stream of its stack.
def zero(shape, writers):
    return 0.0


def flat(shape, writers):
    return 0.02


def by_depth(shape, writers):
    return 0.02 * writers**-0.5


def fan_in(shape, writers):
    return shape[1] ** -0.5


def half_fan_in(shape, writers):
    return 0.5 * shape[1] ** -0.5


def xavier(shape, writers):
    return math.sqrt(2 / sum(shape))


def one(shape, writers):
    return 1.0


# fmt: off
SCHEMES = {
    #                  embedding  tied    hidden       out       head
    "gpt2":     InitScheme(flat,      flat,   flat,        by_depth, flat),
    "bert":     InitScheme(flat,      flat,   flat,        flat,     flat),
    "t5":       InitScheme(one,       fan_in, fan_in,      fan_in,   fan_in),
    "vaswani":  InitScheme(fan_in,    fan_in, xavier,      xavier,   fan_in),
    "modern":   InitScheme(one,       flat,   half_fan_in, zero,     zero),
}


def std_rule(name, matrix, model, scheme):
    """Which column of the table a matrix belongs to."""
    if name == "head.map":
        return scheme.head
    # a head that divides its scores can read a table of any size
    if matrix.weight is model.head.map.weight and model.head.scale is None:
        return scheme.tied
    if name.endswith("embedding.table"):
        return scheme.embedding
    if isinstance(matrix, nn.Embedding):
        return flat
    return scheme.out if name.endswith(".out") else scheme.hidden
# fmt: on


def initialise(model, scheme):
    """Draw every matrix by the scheme; biases start at 0. What is neither a linear map nor a table (the gains
    of norms, a part of your own) keeps what its constructor gave it."""
    if scheme not in SCHEMES:
        raise ValueError(f"model.init is {scheme!r}; choose one of: {', '.join(SCHEMES)}")
    matrices = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Embedding)}
    writers = Counter(name.split(".")[0] for name in matrices if name.endswith(".out"))
    for name, matrix in matrices.items():
        if name == "head.map" and model.head.tie_weights:
            continue
        std = std_rule(name, matrix, model, SCHEMES[scheme])(matrix.weight.shape, writers[name.split(".")[0]])
        nn.init.normal_(matrix.weight, std=std)
        if isinstance(matrix, nn.Linear) and matrix.bias is not None:
            nn.init.zeros_(matrix.bias)
    for attention in (m for m in model.modules() if isinstance(m, MultiHeadAttention)):
        # scores start at one size whatever the scale: T5's, which is 1, asks for smaller queries
        attention.query.weight.data *= attention.head_dim**-0.5 / attention.scale
