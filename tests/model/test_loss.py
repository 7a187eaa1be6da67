"""The loss against torch's own, on the sum, on every gradient, and on what it never holds."""

import pytest
import torch
import torch.nn.functional as F

from model import build_model
from model.embedding import Head
from model.loss import CHUNK, IGNORE_INDEX, loss
from tests.parts import alive, tiny, tokens


def case(rows, keep, **options):
    draw = torch.Generator().manual_seed(0)
    head = Head(8, 11, **options).double()
    hidden = torch.randn(rows // 5, 5, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (rows // 5, 5), generator=draw)
    targets[torch.rand(targets.shape, generator=draw) >= keep] = IGNORE_INDEX
    return hidden, head, targets


def plain(hidden, head, targets):
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
    given = [hidden, *head.parameters()]
    expected = plain(hidden, head, targets)
    torch.testing.assert_close(total, expected)
    for ours, theirs in zip(
        torch.autograd.grad(total / 7, given), torch.autograd.grad(expected / 7, given), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(loss(hidden, head, targets)[0], expected)


@pytest.mark.parametrize(("rows", "keep"), [(5 * CHUNK, 1.0), (5 * CHUNK, 0.15)])
def test_logits_are_held_for_few_positions_and_only_where_there_is_a_target(rows, keep):
    hidden, head, targets = case(rows, keep)
    sizes = []
    head.register_forward_hook(lambda module, given, logits: sizes.append(len(logits)))
    total, count = loss(hidden, head, targets)
    total.backward()
    assert max(sizes) <= CHUNK
    assert sum(sizes) == count  # none twice, none without a target


def test_the_number_of_targets_may_be_told():
    hidden, head, targets = case(50, 0.15)
    count = int((targets != IGNORE_INDEX).sum())
    assert loss(hidden, head, targets, count)[0] == loss(hidden, head, targets)[0]


def test_a_batch_without_targets_is_zero():
    hidden, head, targets = case(50, 0.0)
    total, count = loss(hidden, head, targets)
    assert (total.item(), count) == (0.0, 0)
    total.backward()
    assert not hidden.grad.any()


def test_in_bfloat16_the_sum_keeps_its_digits():
    hidden, head, targets = case(5 * CHUNK, 1.0)
    exact = plain(hidden, head, targets).item()
    hidden, head = hidden.detach().float().requires_grad_(), head.float()
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = loss(hidden, head, targets)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact, rel=1e-3)
    total.backward()
    assert head.map.weight.grad.dtype == torch.float32 and hidden.grad.isfinite().all()


def test_a_head_in_bfloat16_keeps_the_digits_of_its_sum():
    """Its logits are rough, but what is taken from them is not."""
    hidden, head, targets = case(5 * CHUNK, 1.0)
    hidden, head = hidden.detach().bfloat16().requires_grad_(), head.bfloat16()
    exact = F.cross_entropy(head(hidden).double().flatten(0, 1), targets.flatten(), reduction="sum").item()
    total, _ = loss(hidden, head, targets)
    assert total.item() == pytest.approx(exact, rel=1e-4)
    with torch.no_grad():
        assert loss(hidden, head, targets)[0].item() == pytest.approx(exact, rel=1e-4)


def test_many_chunks_in_bfloat16_add_up():
    """Added in bfloat16, the gradients of later chunks would vanish in the sum."""
    hidden, head, targets = case(40 * CHUNK, 1.0)
    exact = torch.autograd.grad(plain(hidden, head, targets), head.map.weight)[0]
    total, _ = loss(hidden.detach().bfloat16(), head.bfloat16(), targets)
    total.backward()
    assert head.map.weight.grad.dtype == torch.bfloat16
    error = (head.map.weight.grad.double() - exact).norm() / exact.norm()
    assert error < 0.004


def test_a_second_derivative_is_refused():
    hidden, head, targets = case(5 * CHUNK, 1.0)
    total, _ = loss(hidden, head, targets)
    [grad] = torch.autograd.grad(total.square(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_each_position_has_one_target():
    hidden, head, targets = case(50, 1.0)
    with pytest.raises(ValueError, match=r"targets must be \(10, 5\), as hidden, and are \(5, 10\)"):
        loss(hidden, head, targets.T)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_through_a_whole_model(tied):
    """Tied weights take the gradient of both their uses; accumulated parts are the whole."""
    net = alive(tiny(head={"tie_weights": tied}))
    text = tokens(2 * CHUNK // 16 + 4, 17)
    inputs, targets = text[:, :-1], text[:, 1:]

    def gradients(parts):
        net.zero_grad()
        for part in parts:
            total, _ = loss(net.hidden(inputs[part]), net.head, targets[part])
            (total / targets.numel()).backward()
        return [p.grad.clone() for p in net.parameters()]

    logits = net(inputs).flatten(0, 1)
    expected = torch.autograd.grad(F.cross_entropy(logits, targets.flatten()), list(net.parameters()))
    for parts in ([slice(None)], [slice(0, 3), slice(3, 67), slice(67, None)]):
        for ours, theirs in zip(gradients(parts), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_head_that_is_frozen_stays_so():
    hidden, head, targets = case(5 * CHUNK, 1.0)
    head.requires_grad_(False)
    total, _ = loss(hidden, head, targets)
    total.backward()
    expected = torch.autograd.grad(plain(hidden, head, targets), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected)
    assert head.map.weight.grad is None


def test_overfits_by_it():
    net, text = build_model(tiny(), 23), tokens(4, 9)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(60):
        total, count = loss(net.hidden(text[:, :-1]), net.head, text[:, 1:])
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    assert (total / count).item() < 0.1
