"""Feed-forward: what each position does alone, after attention has brought it what it needs."""

from functools import partial

import torch.nn as nn
import torch.nn.functional as F

from configs.registry import Count, Positive


def relu2(values):
    return F.relu(values).square()


class MLP(nn.Module):
    """out(activation(up(x))). The d_ff between is given, or `expansion` times d_model; kernels like a round
    one, so it is a multiple of multiple_of."""

    def __init__(
        self,
        d_model: int,
        activation,
        expansion: Positive | None = None,
        multiple_of: Count = 1,
        d_ff: Count | None = None,
        bias: bool = False,
    ):
        super().__init__()
        if (expansion is None) == (d_ff is None):
            raise ValueError(
                f"either expansion ({expansion}) or d_ff ({d_ff}) must be null, and the other not"
            )
        if d_ff is not None and d_ff % multiple_of:
            raise ValueError(f"d_ff ({d_ff}) must be a multiple of multiple_of ({multiple_of})")
        self.d_ff = d_ff or max(1, round(expansion * d_model / multiple_of)) * multiple_of
        self.activation = activation
        self.up = nn.Linear(d_model, self.d_ff, bias=bias)
        self.out = nn.Linear(self.d_ff, d_model, bias=bias)

    def forward(self, x):
        h_BTF = self.activation(self.up(x))
        return self.out(h_BTF)


class GatedMLP(MLP):
    """out(activation(gate(x)) * up(x)): one half decides what of the other passes
    (arxiv.org/abs/2002.05202)."""

    def __init__(
        self,
        d_model: int,
        activation,
        expansion: Positive | None = None,
        multiple_of: Count = 1,
        d_ff: Count | None = None,
        bias: bool = False,
    ):
        super().__init__(d_model, activation, expansion, multiple_of, d_ff, bias)
        self.gate = nn.Linear(d_model, self.d_ff, bias=bias)

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
    "relu": partial(MLP, activation=ACTIVATIONS["relu"]),
    "relu2": partial(MLP, activation=ACTIVATIONS["relu2"]),
    "gelu": partial(MLP, activation=ACTIVATIONS["gelu"]),
    "gelu_tanh": partial(MLP, activation=ACTIVATIONS["gelu_tanh"]),
    "swiglu": partial(GatedMLP, activation=ACTIVATIONS["silu"]),
    "geglu": partial(GatedMLP, activation=ACTIVATIONS["gelu"]),
    "geglu_tanh": partial(GatedMLP, activation=ACTIVATIONS["gelu_tanh"]),
}
