"""Kernels for training on a CPU equal torch's."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from model.kernels import gelu_tanh, project


def value_and_grad(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    y.backward(torch.linspace(0.5, 1, x.numel(), dtype=x.dtype).view_as(x))
    return y.detach(), x.grad


def test_a_compiled_gelu_tanh_equals_torch():
    compiled = torch.compile(gelu_tanh, backend="eager", fullgraph=True)
    for x in (torch.linspace(-12, 12, 1001, dtype=torch.float64), torch.tensor([-1e30, 1e30])):
        results = (
            value_and_grad(compiled, x),
            value_and_grad(lambda x: F.gelu(x, approximate="tanh"), x),
        )
        for ours, torchs in zip(*results, strict=True):
            torch.testing.assert_close(
                ours[x.abs() < 1e9], torchs[x.abs() < 1e9], rtol=0, atol=1e-12
            )
        torch.testing.assert_close(results[0][0], results[1][0])


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
