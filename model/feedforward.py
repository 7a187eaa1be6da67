"""Feed-forward: the same small network at each position."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from configs.registry import Count, Positive, Registry
from model.linear import project

Activation = Callable[[Tensor], Tensor]


class MLP(nn.Module):
    """out(activation(up(x))) or, if gated, out(activation(gate(x)) * up(x))
    (arxiv.org/abs/2002.05202). The hidden width is d_ff, or expansion * d_model rounded to a
    multiple of multiple_of: kernels are faster at such widths."""

    def __init__(
        self,
        d_model: int,
        activation: Activation,
        gated: bool,
        expansion: Positive | None = None,
        multiple_of: Count = 1,
        d_ff: Count | None = None,
        bias: bool = False,
    ):
        super().__init__()

        if d_ff is not None and expansion is None:
            self.d_ff = d_ff
        elif expansion is not None and d_ff is None:
            self.d_ff = max(1, round(expansion * d_model / multiple_of)) * multiple_of
        else:
            raise ValueError(f"set expansion ({expansion}) or d_ff ({d_ff}), the other to null")

        self.activation = activation
        self.up = nn.Linear(d_model, self.d_ff, bias=bias)
        self.out = nn.Linear(self.d_ff, d_model, bias=bias)
        self.gate = nn.Linear(d_model, self.d_ff, bias=bias) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            h_BTF = self.activation(self.up(x))
        else:
            gate_BTF, up_BTF = project(x, self.gate, self.up)
            h_BTF = self.activation(gate_BTF) * up_BTF

        y_BTC = self.out(h_BTF)
        return y_BTC


def squared_relu(values: Tensor) -> Tensor:
    """relu(x)^2, as a product: on a GPU, autocast would compute square() in float32."""
    positive = F.relu(values)
    return positive * positive


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "relu2": squared_relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}

FFNS: Registry = Registry()  # moe.py has one more
for kind, activation in ACTIVATIONS.items():
    FFNS[kind] = partial(MLP, activation=activation, gated=False)
for kind, gate in GATES.items():
    FFNS[kind] = partial(MLP, activation=ACTIVATIONS[gate], gated=True)
