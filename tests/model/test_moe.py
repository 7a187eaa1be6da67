"""Mixture of experts: its formula and its properties, and what the rest knows of it."""

import pytest
import torch

from configs.compose import compose
from model.feedforward import ACTIVATIONS
from model.moe import MixtureOfExperts
from model.transformer import build_model
from model.weights import count_parameters
from tests.model.helpers import Calls, assert_same, randn
from tests.parts import part, randomize, tiny
from tests.training.test_cost import FP32
from training.cost import count

MOE = part("ffn", "moe")
GATED = MOE["expert"] | {"kind": "swiglu", "expansion": None, "d_ff": 7}


def make_moe(**options):
    options = MOE | options
    del options["kind"]
    return randomize(MixtureOfExperts(6, **options).double())


def test_formula():
    """Every expert computes every token, and only the chosen ones count. (That a single one has its own
    probability is compared with transformers in hub/.)"""
    net = make_moe(n_shared=2, expert=GATED)
    x = randn(2, 9, 6)
    probs = (x @ net.router.weight.T).softmax(-1)
    weights = probs * (probs >= probs.topk(net.top_k).values[..., -1:])
    weights = weights / weights.sum(-1, keepdim=True)
    expected = net.shared(x)
    actual = net(x)
    stacks = net.experts.state_dict()
    for i, weight in enumerate(weights.movedim(-1, 0)):
        matrices = {name: stack[i] for name, stack in stacks.items()}
        own = torch.func.functional_call(net.experts, matrices, x)
        expected = expected + weight[..., None] * own
    assert_same(actual, expected)


def test_balance_and_load():
    net = make_moe(balance_loss=0.5)
    x = randn(4, 50, 6)
    probs = (x @ net.router.weight.T).softmax(-1)
    chosen = torch.zeros_like(probs).scatter(-1, probs.topk(2).indices, 0.5)
    load = 8 * chosen.mean((0, 1))
    net(x)
    torch.testing.assert_close(net.load_X, load, check_dtype=False)
    loss = net.losses()["balance"]
    assert loss.item() == pytest.approx((0.5 * load @ probs.mean((0, 1))).item())
    loss.backward()
    assert net.router.weight.grad.any()
    assert make_moe(balance_loss=0.0).losses() == {}


def test_all_experts_of_a_layer_are_initialized_as_one_write():
    for init, name, expected in (("gpt2", "out", 0.01), ("vaswani", "up", (2 / 768) ** 0.5)):
        net = build_model(tiny(d_model=256, init=init, ffn=MOE | {"n_shared": 1}), 23)
        linear = getattr(net.stack.blocks[1].ffn.experts, name)
        assert linear.weight.std().item() == pytest.approx(expected, rel=0.05)


def test_the_plan_counts_what_is_active():
    """As many parameters as the default: two of eight experts, each half as wide."""
    plain = count(compose(["size=tiny"]), FP32, 256)
    routed = count(compose(["size=tiny", "ffn=moe"]), FP32, 256)
    router = 2 * 8 * 64
    active = sum(p.numel() for p in plain.model.parameters()) + router
    total = active + 6 * 2 * 2 * 64 * 128
    assert count_parameters(routed.model) == f"{total:,} parameters, {active:,} active"
    assert routed.flops - plain.flops == 6 * 128 * router


@pytest.mark.parametrize("options", [{}, {"expert": GATED}])
def test_the_sizes_of_the_groups_are_read_once_a_layer(options):
    """Which brings values to the host, and waits for a GPU."""
    net = make_moe(**options)
    with Calls() as calls:
        net(randn(2, 9, 6))
    assert sum(name in ("tolist", "item") for name, _ in calls.made) == 1


def test_the_squared_relu_keeps_the_dtype_of_matmuls():
    """Autocast computes powers in float32 on a GPU, and experts would lose their grouped matmul."""
    up = randn(3, 8)
    with Calls() as calls:
        squared = ACTIVATIONS["relu2"](up)
    assert not [name for name, _ in calls.made if "pow" in name or "square" in name]
    assert torch.equal(squared, up.relu().square())
