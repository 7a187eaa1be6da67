"""Feed-forward: the same small network at each position."""

from functools import partial

import torch.nn as nn
import torch.nn.functional as F

from configs.registry import Count, Positive
from model.kernels import gelu_tanh, project


class MLP(nn.Module):
    """out(activation(up(x))) or, if gated, out(activation(gate(x)) * up(x)) (arxiv.org/abs/2002.05202). The
    hidden width is d_ff, or expansion * d_model rounded to a multiple of multiple_of, because kernels are
    faster at round widths."""

    def __init__(
        self,
        d_model: int,
        activation,
        gated: bool,
        expansion: Positive | None = None,
        multiple_of: Count = 1,
        d_ff: Count | None = None,
        bias: bool = False,
    ):
        super().__init__()
        if (expansion is None) == (d_ff is None):
            raise ValueError(
                f"set either expansion ({expansion}) or d_ff ({d_ff}), and the other to null"
            )
        if d_ff is not None and d_ff % multiple_of:
            raise ValueError(f"d_ff ({d_ff}) must be a multiple of multiple_of ({multiple_of})")
        self.d_ff = d_ff or max(1, round(expansion * d_model / multiple_of)) * multiple_of
        self.activation = activation
        self.up = nn.Linear(d_model, self.d_ff, bias=bias)
        self.out = nn.Linear(self.d_ff, d_model, bias=bias)
        self.gate = nn.Linear(d_model, self.d_ff, bias=bias) if gated else None

    def forward(self, x):
        if self.gate is None:
            h_BTF = self.activation(self.up(x))
        else:
            gate_BTF, up_BTF = project(x, self.gate, self.up)
            h_BTF = self.activation(gate_BTF) * up_BTF
        return self.out(h_BTF)


ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda values: F.relu(values).square(),
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}

GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}
FFNS = {
    name: partial(MLP, activation=f, gated=False)
    for name, f in ACTIVATIONS.items()
    if name != "silu"
}
FFNS |= {
    kind: partial(MLP, activation=ACTIVATIONS[gate], gated=True) for kind, gate in GATES.items()
}
