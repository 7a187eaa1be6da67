"""Feed-forward: what each position does alone, after attention has brought it what it needs."""

from functools import partial

import torch.nn as nn
import torch.nn.functional as F

from model.build import require_above


def relu2(values):
    return F.relu(values).square()


class Plain(nn.Module):
    """out(activation(up(x))). The width between is given, or `expand` times d_model; kernels like a round
    one, so it is a multiple of multiple_of."""

    def __init__(
        self,
        d_model: int,
        activation,
        expand: float | None = None,
        multiple_of: int = 1,
        width: int | None = None,
        bias: bool = False,
    ):
        super().__init__()
        require_above(0, expand=expand, multiple_of=multiple_of, width=width)
        if (expand is None) == (width is None):
            raise ValueError(f"either expand ({expand}) or width ({width}) must be null, and the other not")
        if width is not None and width % multiple_of:
            raise ValueError(f"width ({width}) must be a multiple of multiple_of ({multiple_of})")
        self.ffn_width = width or max(1, round(expand * d_model / multiple_of)) * multiple_of
        self.activation = activation
        self.up = nn.Linear(d_model, self.ffn_width, bias=bias)
        self.out = nn.Linear(self.ffn_width, d_model, bias=bias)

    def forward(self, x):
        h_BTF = self.activation(self.up(x))
        return self.out(h_BTF)


class Gated(Plain):
    """out(activation(gate(x)) * up(x)): one half decides what of the other passes
    (arxiv.org/abs/2002.05202)."""

    def __init__(
        self,
        d_model: int,
        activation,
        expand: float | None = None,
        multiple_of: int = 1,
        width: int | None = None,
        bias: bool = False,
    ):
        super().__init__(d_model, activation, expand, multiple_of, width, bias)
        self.gate = nn.Linear(d_model, self.ffn_width, bias=bias)

    def forward(self, x):
        h_BTF = self.activation(self.gate(x)) * self.up(x)
        return self.out(h_BTF)


ACTIVATIONS = {
    "relu": F.relu,
    "relu2": relu2,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}

FFNS = {
    "relu": partial(Plain, activation=ACTIVATIONS["relu"]),
    "relu2": partial(Plain, activation=ACTIVATIONS["relu2"]),
    "gelu": partial(Plain, activation=ACTIVATIONS["gelu"]),
    "gelu_tanh": partial(Plain, activation=ACTIVATIONS["gelu_tanh"]),
    "swiglu": partial(Gated, activation=ACTIVATIONS["silu"]),
    "geglu": partial(Gated, activation=ACTIVATIONS["gelu"]),
    "geglu_tanh": partial(Gated, activation=ACTIVATIONS["gelu_tanh"]),
}
