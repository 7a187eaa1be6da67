"""Random numbers in float64, and their comparison."""

import torch
from torch.overrides import TorchFunctionMode


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Calls(TorchFunctionMode):
    """Notes (name, output) of each function of torch."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        self.made.append((function.__name__, output))
        return output


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
