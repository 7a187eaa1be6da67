"""The chunked cross-entropy against torch's: the sum, every gradient, and its memory."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from model.embedding import Head
from model.loss import CHUNK, IGNORE_INDEX, loss
from tests.parts import alive, tiny, tokens

VOCABULARY = 2**20 // CHUNK  # no smaller, so that the chunks are of CHUNK positions


def case(rows, keep, **options):
    draw = torch.Generator().manual_seed(0)
    head = Head(8, VOCABULARY, **options).double()
    hidden = torch.randn(rows // 5, 5, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (rows // 5, 5), generator=draw)
    targets[torch.rand(targets.shape, generator=draw) >= keep] = IGNORE_INDEX
    return hidden, head, targets


def reference(hidden, head, targets):
    logits = head(hidden).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


@pytest.mark.parametrize(
    "options", [{}, {"bias": True, "logit_softcap": 3.0, "mlm_transform": "gelu"}], ids=str
)
@pytest.mark.parametrize("keep", [1.0, 0.15])
@pytest.mark.parametrize("rows", [50, 5 * CHUNK])
def test_sum_and_gradients(rows, keep, options):
    hidden, head, targets = case(rows, keep, **options)
    total, count = loss(hidden, head, targets)
    assert count == (targets != IGNORE_INDEX).sum()
    inputs, expected = [hidden, *head.parameters()], reference(hidden, head, targets)
    torch.testing.assert_close(total, expected)
    grads, expected_grads = (torch.autograd.grad(value / 7, inputs) for value in (total, expected))
    torch.testing.assert_close(grads, expected_grads, rtol=0, atol=1e-12)
    assert loss(hidden, head, targets, int(count))[0] == total
    with torch.no_grad():
        torch.testing.assert_close(loss(hidden, head, targets)[0], expected)


@pytest.mark.parametrize("keep", [1.0, 0.15])
def test_logits_exist_for_few_positions_at_a_time_and_only_for_targets(keep):
    hidden, head, targets = case(5 * CHUNK, keep)
    sizes = []

    class Linear(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            output = function(*args, **(kwargs or {}))
            if function is F.linear:
                sizes.append(len(output))
            return output

    with Linear():
        total, count = loss(hidden, head, targets)
    total.backward()
    assert max(sizes) <= CHUNK and sum(sizes) == count  # none twice, none without a target


def test_a_batch_without_targets_is_zero():
    hidden, head, targets = case(50, 0.0)
    total, count = loss(hidden, head, targets)
    assert (total.item(), count) == (0.0, 0)
    total.backward()
    assert not hidden.grad.any()


def test_autocast_keeps_the_precision_of_the_sum():
    hidden, head, targets = case(5 * CHUNK, 1.0)
    exact = reference(hidden, head, targets).item()
    hidden, head = hidden.detach().float().requires_grad_(), head.float()
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = loss(hidden, head, targets)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact, rel=1e-3)
    total.backward()
    assert head.map.weight.grad.dtype == torch.float32 and hidden.grad.isfinite().all()


def test_a_bfloat16_head_keeps_the_precision_of_the_sum_and_of_its_gradients():
    """Summed in bfloat16, the gradients of later chunks would be rounded away."""
    hidden, head, targets = case(10 * CHUNK, 1.0)
    exact_grad = torch.autograd.grad(reference(hidden, head, targets), head.map.weight)[0]
    hidden, head = hidden.detach().bfloat16(), head.bfloat16()
    exact = F.cross_entropy(
        head(hidden).double().flatten(0, 1), targets.flatten(), reduction="sum"
    ).item()
    total, _ = loss(hidden, head, targets)
    total.backward()
    with torch.no_grad():
        for value in (total, loss(hidden, head, targets)[0]):
            assert value.item() == pytest.approx(exact, rel=1e-4)
    assert head.map.weight.grad.dtype == torch.bfloat16
    assert (head.map.weight.grad.double() - exact_grad).norm() / exact_grad.norm() < 0.004


def test_second_derivatives_are_rejected():
    hidden, head, targets = case(5 * CHUNK, 1.0)
    total, _ = loss(hidden, head, targets)
    [grad] = torch.autograd.grad(total.square(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_targets_must_have_the_shape_of_hidden():
    hidden, head, targets = case(50, 1.0)
    with pytest.raises(ValueError, match=r"targets must be \(10, 5\), as hidden, not \(5, 10\)"):
        loss(hidden, head, targets.T)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_whole_model_with_gradient_accumulation(tie_weights):
    """Tied weights receive the gradients of both uses."""
    net = alive(tiny(head={"tie_weights": tie_weights}))
    text = tokens(2 * CHUNK // 16 + 4, 17)
    inputs, targets = text[:, :-1], text[:, 1:]

    def gradients(parts):
        net.zero_grad()
        for part in parts:
            total, _ = loss(net.hidden(inputs[part]), net.head, targets[part])
            (total / targets.numel()).backward()
        return [p.grad.clone() for p in net.parameters()]

    logits = net(inputs).flatten(0, 1)
    expected = torch.autograd.grad(
        F.cross_entropy(logits, targets.flatten()), list(net.parameters())
    )
    for parts in ([slice(None)], [slice(0, 3), slice(3, 67), slice(67, None)]):
        torch.testing.assert_close(gradients(parts), list(expected), rtol=0, atol=1e-12)


def test_a_frozen_head_gets_no_gradient():
    hidden, head, targets = case(5 * CHUNK, 1.0)
    head.requires_grad_(False)
    total, _ = loss(hidden, head, targets)
    total.backward()
    expected = torch.autograd.grad(reference(hidden, head, targets), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)
    assert head.map.weight.grad is None
