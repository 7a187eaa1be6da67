"""The chunked loss against torch's: the sum, every gradient, its memory, eager and compiled."""

import pytest
import torch
import torch.nn.functional as F

from model.embedding import Head
from model.loss import CHUNK, IGNORE_INDEX, loss
from tests.model.helpers import Calls

VOCABULARY = 2**20 // CHUNK + 1  # is padded; no smaller, so that the chunks are of CHUNK positions
ALL_OPTIONS = {"bias": True, "logit_softcap": 3.0, "mlm_transform": "gelu"}
EXTRA = {"label_smoothing": 0.1, "z_loss": 0.01}


def case(rows, keep=1.0, **options):
    """Hidden states, a head, and targets of which a share counts."""
    draw = torch.Generator().manual_seed(0)
    head = Head(8, VOCABULARY, **options).double()
    shape = (rows // 5, 5)
    hidden = torch.randn(*shape, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, shape, generator=draw)
    targets[torch.rand(shape, generator=draw) >= keep] = IGNORE_INDEX
    return hidden, head, targets


def reference(hidden, head, targets, label_smoothing=0.0, z_loss=0.0):
    """Over the logits of all positions."""
    is_target = targets != IGNORE_INDEX
    logits = head(hidden)[is_target]
    options = {"label_smoothing": label_smoothing, "reduction": "sum"}
    total = F.cross_entropy(logits, targets[is_target], **options)
    return total + z_loss * logits.logsumexp(-1).square().sum()


def assert_same(total, expected, inputs):
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
    gradients = torch.autograd.grad(total / 7, inputs)
    expected_gradients = torch.autograd.grad(expected / 7, inputs)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("unsliced", [(), ("cpu",)])  # the second as on a GPU
@pytest.mark.parametrize("extra", [{}, EXTRA])
@pytest.mark.parametrize("options", [{}, {"bias": True}, ALL_OPTIONS])
@pytest.mark.parametrize("rows, keep", [(50, 1.0), (50, 0.0), (5 * CHUNK, 0.15)])
def test_sum_and_gradients(rows, keep, options, extra, unsliced, monkeypatch):
    monkeypatch.setattr("model.loss.UNSLICED", unsliced)
    hidden, head, targets = case(rows, keep, **options)
    expected = reference(hidden, head, targets, **extra)
    total, count = loss(hidden, head, targets, **extra)
    assert count == (targets != IGNORE_INDEX).sum()
    assert_same(total, expected, [hidden, *head.parameters()])
    assert loss(hidden, head, targets, count, **extra)[0] == total
    with torch.no_grad():
        torch.testing.assert_close(loss(hidden, head, targets, **extra)[0], expected)


@pytest.mark.parametrize("keep", [1.0, 0.15])
def test_logits_exist_for_few_positions_at_a_time_and_only_for_targets(keep):
    hidden, head, targets = case(5 * CHUNK, keep)
    with Calls() as calls:
        total, count = loss(hidden, head, targets)
    total.backward()
    sizes = [len(output) for name, output in calls.made if name == "linear"]
    assert max(sizes) <= CHUNK
    assert sum(sizes) == count  # none twice, none without a target


def test_a_bfloat16_head_keeps_the_precision_of_the_sum_and_of_its_gradients():
    """Summed in bfloat16, the gradients of later chunks would be rounded away."""
    hidden, head, targets = case(10 * CHUNK)
    [exact] = torch.autograd.grad(reference(hidden, head, targets), head.map.weight)
    hidden = hidden.detach().bfloat16()
    head = head.bfloat16()
    expected = F.cross_entropy(head(hidden).double().mT, targets, reduction="sum").item()
    for needs_grad in (False, True):
        with torch.set_grad_enabled(needs_grad):
            total, _ = loss(hidden, head, targets)
        assert total.item() == pytest.approx(expected, rel=1e-4)
    total.backward()
    grad = head.map.weight.grad
    assert grad.dtype == torch.bfloat16
    assert (grad.double() - exact).norm() / exact.norm() < 0.004
