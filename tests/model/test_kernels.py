"""Kernels for training on a CPU equal torch's."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from model.kernels import CHUNK, gelu_tanh, project


def value_and_grad(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    y.backward(torch.linspace(0.5, 1, x.numel(), dtype=x.dtype).view_as(x))
    return y.detach(), x.grad


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 3e-6)])
def test_gelu_tanh_equals_torch(dtype, tolerance):
    """In several chunks, the last one shorter, and in a layout that is not contiguous."""
    x = torch.linspace(-12, 12, 2 * CHUNK + 10, dtype=dtype)
    for values in (x, x.view(2, -1).T, torch.tensor([-1e30, 1e30], dtype=dtype)):
        ours = value_and_grad(gelu_tanh, values)
        torchs = value_and_grad(lambda x: F.gelu(x, approximate="tanh"), values)
        torch.testing.assert_close(ours[0], torchs[0], rtol=tolerance, atol=tolerance)
        if values.abs().max() < 100:
            torch.testing.assert_close(ours[1], torchs[1], rtol=tolerance, atol=tolerance)


def test_gelu_tanh_in_bfloat16_is_computed_in_float32():
    """The result is rounded once, the gradient twice."""
    x = torch.linspace(-8, 8, 10001, dtype=torch.bfloat16)
    reference = value_and_grad(lambda x: F.gelu(x, approximate="tanh"), x.double())
    for ours, exact, roundings in zip(value_and_grad(gelu_tanh, x), reference, (1, 2), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=roundings * 2.0**-8, atol=1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_projecting_together_equals_projecting_apart(bias):
    maps = [nn.Linear(6, width, bias=bias).double() for width in (4, 2, 3)]
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    inputs = [x, *nn.ModuleList(maps).parameters()]

    def results(tensors):
        loss = sum((i + 1) * tensor.square().sum() for i, tensor in enumerate(tensors))
        return [*tensors, *torch.autograd.grad(loss, inputs)]

    together, apart = results(project(x, *maps)), results([linear(x) for linear in maps])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    assert [tensor.shape[-1] for tensor in together[:3]] == [4, 2, 3]


def test_a_module_in_place_of_a_linear_map_is_called():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    maps, x = [nn.Linear(3, 3), Doubled(3, 3)], torch.randn(2, 3)
    assert torch.equal(project(x, *maps)[1], 2 * F.linear(x, maps[1].weight, maps[1].bias))
