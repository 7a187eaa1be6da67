"""Random numbers in float64, and their comparison."""

import torch


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomize(module):
    module = module.double().eval()
    for i, parameter in enumerate(module.parameters()):
        parameter.data = randn(*parameter.shape, seed=i + 1)
    return module


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
