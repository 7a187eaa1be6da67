"""One update: the mean over all targets however they are divided, and the rules of the optimizers."""

import math

import pytest
import torch

from configs.errors import NonFiniteError
from configs.registry import build
from data.objectives import IGNORE_INDEX, Batch
from model import build_model
from model.precision import Precision
from tests.parts import VOCABULARY, part, tiny, tokens
from training import optimizer as muon
from training.distributed import Dist
from training.optimizer import OPTIMIZERS, hidden_matrices
from training.step import LossModule, Way, backward, seed_step, update

CPU = torch.device("cpu")


def precision(dtype=torch.float32):
    return Precision(CPU, dtype, "for a test")


def batch(kind="decoder", rows=6, length=9, seed=0):
    """Rows with unequal numbers of targets."""
    text, targets = tokens(rows, length, seed=seed), tokens(rows, length, seed=seed + 1)
    targets[torch.arange(length) >= torch.arange(2, 2 + rows)[:, None]] = IGNORE_INDEX
    inputs = {"tokens": text}
    if kind == "encoder_decoder":
        inputs["source"] = tokens(rows, 5, seed=seed + 2)
    return Batch(inputs, targets, int((targets != IGNORE_INDEX).sum()))


def model(kind="decoder", **changes):
    return build_model(tiny(kind, **changes), VOCABULARY, seed=3)


def optimizer(name, of, **changes):
    return build("optimizer", OPTIMIZERS, part("optimizer", name, **changes), {}).make(of)


def scaler(dtype=torch.float32):
    return precision(dtype).scaler()


def way(rule=None, dtype=torch.float32, clip=0.0, micro_batch_size=6, grow=None):
    return Way(rule, grow or scaler(dtype), precision(dtype), Dist(), micro_batch_size, clip)


def step(of, rule, given, factor=1.0, **how):
    return update(LossModule(of), given, factor, way(rule, **how))


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 4])
def test_micro_batches_give_the_gradient_of_the_whole(kind, micro_batch_size):
    of, given = model(kind).double(), batch(kind)

    def gradient(micro):
        of.zero_grad()
        total = backward(LossModule(of), given, given.count, way(micro_batch_size=micro))
        return total / given.count, [p.grad.clone() for p in of.parameters() if p.grad is not None]

    whole, gradients = gradient(6)
    parts, summed = gradient(micro_batch_size)
    assert parts == pytest.approx(float(whole), rel=1e-6)
    for a, b in zip(summed, gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-14)


def test_the_loss_is_the_mean_over_targets():
    of, given = model().eval(), batch()
    logits = of(**given.inputs).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(
        logits, given.targets.flatten(), ignore_index=IGNORE_INDEX
    ).item()
    assert step(of, optimizer("adamw", of), given).loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_batch_is_learned_by_heart(kind, name):
    of, given = model(kind), batch(kind)
    rule = optimizer(name, of, **({"rate": 3e-3} if name == "adamw" else {}))
    for _ in range(150):
        learned = step(of, rule, given, clip=1.0)
    assert learned.loss < 0.1


def test_adamw_is_adamw():
    """Against the formulas, with decay for matrices only."""
    of, given = model(position=part("position", "rope")), batch()
    rule = optimizer("adamw", of, rate=0.01, weight_decay=0.1)
    before = {n: p.detach().clone() for n, p in of.named_parameters()}
    seed_step(0, 0)
    total = backward(LossModule(of), given, given.count, way())
    grads = {n: p.grad.clone() for n, p in of.named_parameters()}
    assert total > 0
    rule.step(0.5, scaler())
    for name, parameter in of.named_parameters():
        decay = 0.1 if parameter.ndim >= 2 else 0.0
        moved = before[name] * (1 - 0.005 * decay)
        moved -= 0.005 * grads[name] / (grads[name].abs() + 1e-8)  # the first step of Adam
        assert torch.allclose(parameter, moved, atol=1e-6), name


def test_muon_moves_hidden_matrices_and_adamw_the_rest():
    of = model("encoder_decoder")
    inner = {id(p) for p in hidden_matrices(of)}
    for name, parameter in of.named_parameters():
        expected = (
            name.split(".")[0] in ("encoder", "decoder") and parameter.ndim == 2 and "table" not in name
        )
        assert (id(parameter) in inner) == expected, name
    rule = optimizer("muon", of)
    held = [id(p) for group in rule.groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in of.parameters()), "each once"


def test_muon_is_muon():
    """Against the formulas: two steps, so that the momentum is seen."""
    of = model()
    rule = optimizer("muon", of, rate=0.1)
    matrix, momentum = of.stack.blocks[0].ffn.up.weight, 0.0
    draw = torch.Generator().manual_seed(0)
    for _ in range(2):
        before = matrix.detach().clone()
        matrix.grad = gradient = torch.randn(matrix.shape, generator=draw)
        momentum = 0.95 * momentum + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * momentum
        x = x / x.norm()
        for _ in range(5):  # Newton and Schulz, towards the nearest orthogonal matrix
            square = x.mT @ x
            x = 3.4445 * x + x @ (-4.775 * square + 2.0315 * square @ square)
        rule.step(1.0, scaler())
        scale = 0.1 * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
        moved = (before - matrix.detach()) / scale
        assert (moved - x).norm() < 0.02 * x.norm(), "torch computes this in bfloat16"


def test_matrices_that_go_together_go_where_torch_takes_each():
    shapes, draw = [(8, 8), (24, 8), (8, 8), (8, 24), (24, 8)], torch.Generator().manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    usual = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    rules = muon.Muon(ours, **usual), torch.optim.Muon(theirs, **usual)
    for _ in range(3):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = two.grad = torch.randn(one.shape, generator=draw)
        for rule in rules:
            rule.step()
    for one, two in zip(ours, theirs, strict=True):
        assert (one - two).norm() < 0.02 * two.norm(), "torch computes this in bfloat16"
    for one, two in zip(ours, theirs, strict=True):
        same = (rules[i].state[p]["momentum_buffer"] for i, p in enumerate((one, two)))
        torch.testing.assert_close(*same)


def test_the_factor_scales_every_rate():
    of = model()
    rule = optimizer("muon", of)
    step(of, rule, batch(), factor=0.25)
    assert [g["lr"] for g in rule.groups] == [g["peak"] * 0.25 for g in rule.groups]
    before = [p.detach().clone() for p in of.parameters()]
    step(of, rule, batch(), factor=0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, of.parameters(), strict=True))


def test_a_gradient_is_clipped_and_its_norm_told():
    of, given = model(), batch()
    free = step(of, optimizer("adamw", of, rate=1e-12), given)
    asked = LossModule(of)
    backward(asked, given, given.count, way())
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in of.parameters()))
    assert free.norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_never_reaches_the_weights(what):
    of, given = model(), batch()
    rule = optimizer("muon", of)
    step(of, rule, given)
    weights = {n: t.clone() for n, t in of.state_dict().items()}
    memory = {n: t.clone() for n, t in rule.tensors().items()}
    table = of.embedding.table.weight
    if what == "loss":
        weights["embedding.table.weight"][5] = table.data[5] = math.nan
    else:
        table.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(NonFiniteError, match=f"the {what} is not finite"):
        step(of, rule, given)
    for name, tensor in {**of.state_dict(), **rule.tensors()}.items():
        assert torch.equal(tensor.nan_to_num(7), {**weights, **memory}[name].nan_to_num(7)), name


def test_float16_is_scaled_and_an_overflow_left_out():
    of, given = model(), batch()
    rule, grow = optimizer("adamw", of), scaler(torch.float16)
    assert not step(of, rule, given, dtype=torch.float16, grow=grow).skipped or grow.get_scale() < 65536
    before = [p.detach().clone() for p in of.parameters()]
    grow.update(2.0**40)
    skipped = step(of, rule, given, dtype=torch.float16, grow=grow)
    assert skipped.skipped and grow.get_scale() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(before, of.parameters(), strict=True))


def test_an_overflow_of_one_matrix_moves_nothing():
    """Neither do the parameters that learn by another rule, nor is a step remembered."""
    of, given = model(), batch()
    rule = optimizer("muon", of)
    before = [p.detach().clone() for p in of.parameters()]
    hidden_matrices(of)[0].register_hook(lambda gradient: gradient * math.inf)
    assert step(of, rule, given, dtype=torch.float16).skipped and not rule.tensors()
    assert all(torch.equal(a, b) for a, b in zip(before, of.parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_it_should_remember_is_known(name):
    of = model()
    rule, wanted = optimizer(name, of), optimizer(name, of).wanted()
    step(of, rule, batch())
    told = {key: (tensor.dtype, tensor.shape) for key, tensor in rule.tensors().items()}
    assert told == {key: (tensor.dtype, tensor.shape) for key, tensor in wanted.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_remembers_is_put_back(name):
    one, other = model(), model()
    rule = optimizer(name, one)
    step(one, rule, batch())
    other.load_state_dict(one.state_dict())
    again = optimizer(name, other)
    again.load({n: t.clone() for n, t in rule.tensors().items()})
    step(one, rule, batch(seed=5))
    step(other, again, batch(seed=5))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_dropout_follows_from_the_step():
    of, given = model(dropout=0.5), batch()

    def total(seed, at):
        seed_step(seed, at)
        return LossModule(of)(given.inputs, given.targets, given.count).item()

    assert total(0, 3) == total(0, 3) != total(0, 4) != total(1, 3)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("adamw", {"rate": 0.0}, "rate must be above 0"),
        ("adamw", {"rate": float("inf")}, "rate is inf; expected a finite number"),
        ("adamw", {"beta2": 1.0}, "beta2 must be from 0 to below 1 and is 1"),
        ("adamw", {"weight_decay": -0.1}, "weight_decay must be 0 or more and is -0.1"),
        ("muon", {"momentum": 1.0}, "momentum must be from 0 to below 1 and is 1"),
        ("muon", {"adamw_lr_ratio": -1.0}, "adamw_lr_ratio must be above 0"),
    ],
)
def test_what_cannot_be(name, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        optimizer(name, model(), **changes)
