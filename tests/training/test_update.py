"""One update: the mean over all targets however a batch is split; the rules of the optimizers."""

import math
from dataclasses import replace
from functools import partial
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import get_total_norm

import train
from configs.compose import compose
from configs.schema import IGNORE_INDEX, LossConfig
from data.batch import Batch
from model.precision import Precision
from model.transformer import build_model
from tests.parts import (
    ARCHITECTURES,
    TYPICAL,
    VOCABULARY,
    kind_options,
    kinds,
    names,
    part,
    thin,
    tiny,
    tokens,
)
from training.distributed import World
from training.evaluation import mean_losses
from training.muon import Muon
from training.optimizer import OPTIMIZERS, build_optimizers, groups_of, set_lr, state_tensors
from training.restore import fill
from training.run import Run, TrainState
from training.step import LossModule, micro_batches, seed_step

pytestmark = pytest.mark.quick


def make_batch(kind="decoder", rows=6, length=9, seed=0):
    """Rows with different numbers of targets."""
    inputs = {"tokens": tokens(rows, length, seed=seed)}
    targets = tokens(rows, length, seed=seed + 1)
    targets[torch.arange(length) >= torch.arange(2, 2 + rows)[:, None]] = IGNORE_INDEX
    if kind == "encoder_decoder":
        inputs["source"] = tokens(rows, 5, seed=seed + 2)
    return Batch(inputs, targets, int((targets != IGNORE_INDEX).sum()))


def make_model(kind="decoder", **changes):
    return build_model(tiny(kind, **changes), VOCABULARY, seed=3)


def make_optimizers(name, model, **changes):
    return build_optimizers(part("optimizer", name, **changes), model)


def make_world(dtype=torch.float32):
    precision = Precision(torch.device("cpu"), dtype, "for a test")
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    return World(0, 1, "none", precision, scaler)


def make_run(module, optimizers=(), rows=4, clip=0.0, world=None):
    config = SimpleNamespace(train=SimpleNamespace(grad_clip=clip))
    state = TrainState(micro_batch_size=rows)
    return Run(config, None, world or make_world(), module, optimizers, None, state)


def with_loss(model):
    """The plain cross-entropy."""
    return LossModule(model, LossConfig(0.0, 0.0))


def updater(model, optimizers, rows=6, **options):
    """update(batch) -> StepResult"""
    run = make_run(with_loss(model), optimizers, rows, **options)
    return partial(train.update, run, run.loss_module, clock=0.0)


def sgd(model, lr=1.0):
    return [torch.optim.SGD(model.parameters(), lr=lr)]


def after_sgd(model, loss):
    """(the gradients of a loss, the parameters after a step of sgd)"""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        return gradients, torch._foreach_sub(parameters, gradients)


def copy_of(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_equal(tensors, expected):
    torch.testing.assert_close(tensors, expected, rtol=0, atol=0)


def cross_entropy(model, batch, reduction="mean"):
    logits, targets = model(**batch.inputs).flatten(0, 1), batch.targets.flatten()
    return nn.functional.cross_entropy(logits, targets, reduction=reduction)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("rows, share", [(6, 1.0), (4, 1.0), (1, 1.0), (4, 0.5)])
def test_micro_batches_add_up_to_the_gradient_of_the_mean(kind, rows, share):
    """Or to a share of it, if it is clipped, which does not change the norm that is told."""
    model = make_model(kind, head={"tie_weights": True}).double()
    batch = make_batch(kind)
    mean = cross_entropy(model, batch)
    gradients, expected = after_sgd(model, share * mean)
    clip = get_total_norm(gradients).item()
    update = updater(model, sgd(model), rows, clip=0.0 if share == 1 else clip)
    result = update(batch)
    assert result.losses["loss"] == pytest.approx(mean.item(), rel=1e-6)
    assert result.grad_norm == pytest.approx(clip / share, rel=1e-6)
    rtol, atol = (1e-9, 1e-12) if share == 1 else (1e-5, 1e-8)
    torch.testing.assert_close(list(model.parameters()), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", kinds("optimizer", OPTIMIZERS))
def test_every_optimizer_goes_on_as_if_it_had_not_stopped(kind):
    """From weights and state alone, saved with the weights to evaluate; to swap() twice changes nothing."""

    def begin():
        model = make_model()
        optimizers = build_optimizers(kind_options("optimizer", kind), model)
        tensors = dict(model.named_parameters()) | state_tensors(model, optimizers)
        return tensors, make_run(None, optimizers).evaluated_weights, updater(model, optimizers)

    tensors, swapped, update = begin()
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == len(tensors), "shared memory"
    for seed in (1, 2, 3):
        update(make_batch(seed=seed))
    before = copy_of(tensors)
    with swapped():
        saved = copy_of(tensors)
    assert_equal(tensors, before)

    others, swapped, resumed = begin()
    with swapped():
        fill(others, saved.items())
    for seed in (4, 5):
        update(make_batch(seed=seed))
        resumed(make_batch(seed=seed))
    assert_equal(tensors, others)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_nan_never_reaches_the_weights(what):
    model = make_model()
    optimizers = make_optimizers("muon", model)
    update = updater(model, optimizers, clip=1.0)
    update(make_batch())
    table = model.embedding.table.weight
    if what == "loss":
        table.data[5] = math.nan
    else:
        table.register_hook(lambda grad: grad * math.inf)

    def state():
        tensors = model.state_dict() | state_tensors(model, optimizers)
        return {name: tensor.detach().nan_to_num(7) for name, tensor in tensors.items()}

    before = state()
    with pytest.raises(FloatingPointError, match=f"step 1: the {what} is not finite"):
        update(make_batch())
    assert_equal(state(), before)


def test_a_float16_overflow_skips_all_optimizers():
    model = make_model()
    optimizers = make_optimizers("muon", model)
    before = copy_of(model.state_dict())
    world = make_world(dtype=torch.float16)
    update = updater(model, optimizers, world=world)
    hook = groups_of(optimizers)[0]["params"][0].register_hook(lambda grad: grad * math.inf)
    update(make_batch())
    assert world.scaler.get_scale() == 2.0**15, "half of the default"
    assert_equal(model.state_dict(), before)
    assert not any(tensor.any() for tensor in state_tensors(model, optimizers).values())
    hook.remove()
    update(make_batch())
    assert any(tensor.any() for tensor in state_tensors(model, optimizers).values())


def test_dropout_follows_from_seed_step_and_rank():
    model, batch = make_model(dropout=0.5), make_batch()

    def loss(*where):
        seed_step(*where)
        return cross_entropy(model, batch).item()

    draws = [loss(0, 3, 0), loss(1, 3, 0), loss(0, 4, 0), loss(0, 3, 1)]
    assert loss(0, 3, 0) == draws[0] and len(set(draws)) == 4


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("preset", thin(names("model"), TYPICAL[::2]))
def test_a_step_stays_on_its_device(preset, optimizer):
    """It reads nothing back, which would wait for a GPU, and on `meta` raises."""
    config = compose([f"model={preset}", f"optimizer={optimizer}", "size=tiny"])
    with torch.device("meta"):
        model = build_model(config.model, VOCABULARY)
    optimizers = build_optimizers(config.optimizer, model)
    module, batch = LossModule(model, config.loss), make_batch(model.kind)
    for rows, _ in micro_batches(batch, 3, torch.device("meta")):
        module(*rows)["loss"].backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    for each in optimizers:
        each.step()


@pytest.mark.parametrize("options", [(0.1, 0.0), (0.0, 0.01)])
def test_an_evaluation_is_the_mean_over_targets(options):
    """Without dropout, and what is added to the loss of training."""
    model = make_model(dropout=0.5).double()
    module = LossModule(model, LossConfig(*options))
    batches = [make_batch(), replace(make_batch(rows=2, seed=5), source="b")]
    found = mean_losses(make_run(module), batches)
    assert module.training and model.training
    model.eval()
    first, second = (cross_entropy(model, batch, "sum").item() for batch in batches)
    n_targets = batches[0].count + batches[1].count
    assert found["val_loss"] == pytest.approx((first + second) / n_targets, rel=1e-9)
    assert found["val_loss_b"] == pytest.approx(second / batches[1].count, rel=1e-9)
    assert module(*batches[0])["loss"].item() != pytest.approx(first, rel=1e-9)


def test_weights_decay_at_the_learning_rate_of_the_step():
    """And of AdamW matrices only; without a gradient, nothing else changes them."""
    model = make_model()
    [optimizer] = optimizers = make_optimizers("adamw", model, lr=0.01, weight_decay=0.1)
    before = copy_of(model.state_dict())
    assert set_lr(optimizers, 0.5) == 0.005
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.005 * 0.1 if parameter.ndim >= 2 else 1
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def matrices_of(stack):
    return stack.view(-1, *stack.shape[-2:])


def test_muon_agrees_with_torch():
    """In the update, the momentum and the weight decay; also of each matrix in the stack of a mixture of
    experts."""
    stacks = [torch.zeros(shape) for shape in [(8, 8), (24, 8), (8, 8), (3, 8, 24), (9, 24, 8)]]
    theirs = [[*map(nn.Parameter, matrices_of(stack.clone()))] for stack in stacks]
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = Muon(stacks, **options), torch.optim.Muon([*chain(*theirs)], **options)
    optimizers[0].state |= {stack: optimizers[0].start_state(stack) for stack in stacks}
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for stack, matrices in zip(stacks, theirs, strict=True):
            stack.grad = torch.randn(stack.shape, generator=generator)
            for matrix, gradient in zip(matrices, matrices_of(stack.grad.clone()), strict=True):
                matrix.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    for stack, matrices in zip(stacks, theirs, strict=True):
        expected = torch.stack(matrices).view_as(stack)
        assert (stack - expected).norm() < 0.02 * expected.norm(), "bfloat16 is not exact"
