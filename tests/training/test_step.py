"""One training step: the mean over all targets however a batch is split, and the rules of the optimizers."""

import math

import pytest
import torch

from configs.errors import NonFiniteError
from configs.registry import build
from configs.schema import IGNORE_INDEX
from data.objectives import Batch
from model.precision import Precision
from model.transformer import build_model
from tests.parts import VOCABULARY, part, tiny, tokens
from training.distributed import Dist
from training.optimizer import OPTIMIZERS, BatchedMuon
from training.step import LossModule, TrainStep, seed_step

KINDS = ["decoder", "encoder", "encoder_decoder"]


def make_batch(kind="decoder", rows=6, length=9, seed=0):
    """Rows with different numbers of targets."""
    inputs, targets = (
        {"tokens": tokens(rows, length, seed=seed)},
        tokens(rows, length, seed=seed + 1),
    )
    targets[torch.arange(length) >= torch.arange(2, 2 + rows)[:, None]] = IGNORE_INDEX
    if kind == "encoder_decoder":
        inputs["source"] = tokens(rows, 5, seed=seed + 2)
    return Batch(inputs, targets, int((targets != IGNORE_INDEX).sum()))


def make_model(kind="decoder", **changes):
    return build_model(tiny(kind, **changes), VOCABULARY, seed=3)


def make_optimizer(name, model, **changes):
    return build("optimizer", OPTIMIZERS, part("optimizer", name, **changes), {"model": model})


def make_step(model, optimizer, dtype=torch.float32, micro_batch_size=6, max_grad_norm=0.0):
    precision = Precision(torch.device("cpu"), dtype, "for a test")
    return TrainStep(
        LossModule(model), optimizer, precision, Dist(), micro_batch_size, max_grad_norm
    )


def copy_of(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_equal(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 4])
def test_micro_batches_accumulate_the_gradient_of_the_batch(kind, micro_batch_size):
    model, batch = make_model(kind).double(), make_batch(kind)

    def loss_and_gradients(size):
        model.zero_grad()
        total = make_step(model, None, micro_batch_size=size).backward(batch, batch.count)
        return total / batch.count, [
            p.grad.clone() for p in model.parameters() if p.grad is not None
        ]

    loss, gradients = loss_and_gradients(6)
    accumulated_loss, accumulated = loss_and_gradients(micro_batch_size)
    assert accumulated_loss == pytest.approx(float(loss), rel=1e-6)
    for a, b in zip(accumulated, gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-14)


def test_the_loss_is_the_mean_over_targets():
    """In a step, and in an evaluation of several batches, which is without dropout."""
    model, batches = make_model(dropout=0.5), [make_batch(), make_batch(rows=2, seed=5)]
    step = make_step(model, make_optimizer("adamw", model))

    def cross_entropy(batch):
        logits, targets = model(**batch.inputs).flatten(0, 1), batch.targets.flatten()
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()

    model.eval()
    first, second = map(cross_entropy, batches)
    count = batches[0].count + batches[1].count
    assert step(batches[0], 0.0).loss == pytest.approx(first / batches[0].count, rel=1e-5)
    assert step.evaluate(batches) == (pytest.approx((first + second) / count, rel=1e-5), count)
    assert model.training and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_overfits(kind):
    model, batch = make_model(kind), make_batch(kind)
    name, changes = ("adamw", {"lr": 3e-3}) if kind == "encoder" else ("muon", {})
    step = make_step(model, make_optimizer(name, model, **changes), max_grad_norm=1.0)
    for _ in range(150):
        metrics = step(batch, 1.0)
    assert metrics.loss < 0.1


def test_adamw_follows_its_formula():
    """With weight decay for matrices only."""
    model, batch = make_model(position=part("position", "rope")), make_batch()
    optimizer = make_optimizer("adamw", model, lr=0.01, weight_decay=0.1)
    before = copy_of(dict(model.named_parameters()))
    step = make_step(model, optimizer)
    assert step.backward(batch, batch.count) > 0
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step(0.5, step.scaler)
    for name, parameter in model.named_parameters():
        decay = 0.1 if parameter.ndim >= 2 else 0.0
        expected = before[name] * (1 - 0.005 * decay)
        expected -= (
            0.005 * gradients[name] / (gradients[name].abs() + 1e-8)
        )  # the first step of Adam
        assert torch.allclose(parameter, expected, atol=1e-6), name


def test_muon_updates_hidden_matrices_and_adamw_the_rest():
    model = make_model("encoder_decoder")
    optimizer = make_optimizer("muon", model)
    muon, adamw = (
        {id(p) for g in o.param_groups for p in g["params"]} for o in optimizer.optimizers
    )
    for name, parameter in model.named_parameters():
        in_stack = name.split(".")[0] in ("encoder", "decoder")
        expected = in_stack and parameter.ndim == 2 and "table" not in name
        assert (id(parameter) in muon) == expected != (id(parameter) in adamw), name


def test_batched_muon_agrees_with_torch():
    """In the update, the momentum and the weight decay."""
    shapes, generator = (
        [(8, 8), (24, 8), (8, 8), (8, 24), (24, 8)],
        torch.Generator().manual_seed(0),
    )
    batched, single = (
        [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2)
    )
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = BatchedMuon(batched, **options), torch.optim.Muon(single, **options)
    for _ in range(3):
        for a, b in zip(batched, single, strict=True):
            a.grad = b.grad = torch.randn(a.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(batched, single, strict=True):
        assert (a - b).norm() < 0.02 * b.norm(), "bfloat16 is not exact"
        assert torch.equal(
            *(o.state[p]["momentum_buffer"] for o in optimizers for p in (a, b) if p in o.state)
        )


def test_muon_learns_the_same_at_any_scale_of_the_scores():
    """T5's scores are unscaled and its queries are smaller, which alone changes nothing."""
    losses = []
    for scale in (None, 1.0):  # 1 / sqrt(16) is a power of 2, so that even the rounding is the same
        model = make_model(
            n_heads=2, init="t5", attention=part("attention", "mha_nobias", scale=scale)
        )
        step = make_step(model, make_optimizer("muon", model))
        losses.append([step(make_batch(seed=i), 1.0).loss for i in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_factor_scales_every_learning_rate():
    model, batch = make_model(), make_batch()
    optimizer = make_optimizer("muon", model, lr=0.02, adamw_lr_ratio=0.5)
    step = make_step(model, optimizer)
    assert optimizer.lr == 0.02
    step(batch, 0.25)
    assert optimizer.lr == 0.005 and {group["lr"] for group in optimizer.groups} == {0.005, 0.0025}
    before = copy_of(model.state_dict())
    step(batch, 0.0)
    assert_equal(model.state_dict(), before)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_have_a_learning_rate_of_their_own(tied):
    """AdamW's first step moves each entry by the learning rate."""
    model, batch = make_model(head={"tie_weights": tied}), make_batch()
    before = copy_of(model.state_dict())
    optimizer = make_optimizer("muon", model, lr=0.02, adamw_lr_ratio=0.1, embedding_lr_ratio=0.5)
    make_step(model, optimizer)(batch, 1.0)
    moved = {
        name: (tensor - before[name]).abs().max().item()
        for name, tensor in model.state_dict().items()
    }
    assert moved["embedding.table.weight"] == pytest.approx(0.01, rel=1e-3)
    assert moved["head.map.weight"] == pytest.approx(0.01 if tied else 0.002, rel=1e-3)
    assert moved["stack.final_norm.weight"] == pytest.approx(0.002, rel=1e-3)


def test_the_norm_is_that_before_clipping():
    model, batch = make_model(), make_batch()
    optimizer = make_optimizer("adamw", model, lr=1e-12)
    make_step(model, optimizer).backward(batch, batch.count)
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
    optimizer.reset()
    for max_grad_norm in (0.0, norm / 2):
        metrics = make_step(model, optimizer, max_grad_norm=max_grad_norm)(batch, 1.0)
        assert metrics.grad_norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_nan_never_reaches_the_weights(what):
    model, batch = make_model(), make_batch()
    optimizer = make_optimizer("muon", model)
    step = make_step(model, optimizer)
    step(batch, 1.0)
    table = model.embedding.table.weight
    if what == "loss":
        table.data[5] = math.nan
    else:
        table.register_hook(lambda grad: grad * math.inf)
    before = copy_of({**model.state_dict(), **optimizer.tensors()})
    with pytest.raises(NonFiniteError, match=f"the {what} is not finite"):
        step(batch, 1.0)
    after = {**model.state_dict(), **optimizer.tensors()}
    assert_equal(
        *({name: t.nan_to_num(7) for name, t in tensors.items()} for tensors in (after, before))
    )


def test_a_float16_overflow_skips_all_optimizers():
    model = make_model()
    optimizer, before, overflows = (
        make_optimizer("muon", model),
        copy_of(model.state_dict()),
        [True],
    )
    step = make_step(model, optimizer, torch.float16)
    optimizer.groups[0]["params"][0].register_hook(
        lambda grad: grad * math.inf if overflows else grad
    )
    assert step(make_batch(), 1.0).skipped and step.scaler.get_scale() == 2.0**15, (
        "half of the default"
    )
    assert_equal(model.state_dict(), before)
    assert not optimizer.tensors()
    overflows.clear()
    assert not step(make_batch(), 1.0).skipped and optimizer.tensors()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_state_is_saved_and_loaded(name):
    model, other = make_model(), make_model()
    optimizer, loaded = make_optimizer(name, model), make_optimizer(name, other)
    step = make_step(model, optimizer)
    step(make_batch(), 1.0)
    specs = [{key: (t.dtype, t.shape) for key, t in tensors.items()}
             for tensors in (optimizer.tensors(), loaded.expected_state())]  # fmt: skip
    assert specs[0] == specs[1] and specs[0]
    other.load_state_dict(model.state_dict())
    loaded.load(copy_of(optimizer.tensors()).items())
    step(make_batch(seed=5), 1.0)
    make_step(other, loaded)(make_batch(seed=5), 1.0)
    assert_equal(
        {**other.state_dict(), **loaded.tensors()}, {**model.state_dict(), **optimizer.tensors()}
    )


def test_dropout_follows_from_the_step():
    batch, step = make_batch(), make_step(make_model(dropout=0.5), None)

    def loss(*seed_and_step):
        seed_step(*seed_and_step)
        return float(step.backward(batch, batch.count))

    assert loss(0, 3) == loss(0, 3) != loss(0, 4) != loss(1, 3)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="lr is inf; expected a number above 0"):
        make_optimizer("adamw", make_model(), lr=math.inf)
    with pytest.raises(ValueError, match="beta2 is 1.0; expected a number at least 0 and below 1"):
        make_optimizer("adamw", make_model(), beta2=1.0)
