"""Own parts whose state no checkpoint would hold are refused; what is frozen is held once."""

from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from data.objectives import NextToken
from model.checkpoint import load_run
from model.feedforward import MLP
from tests.parts import refused
from tests.training.runs import content, last, newest, tensors
from training.checks import check_gradients, check_terms
from training.optimizer import OPTIMIZERS, AdamW

USE = ["ffn=relu", "schedule=constant", "schedule.warmup=1"]
ADAMW = ["beta1", "beta2", "eps", "weight_decay"]


def extended(monkeypatch, kind, change):
    """From now on change() is called with each object of this class when it is made."""
    made = kind.__init__

    @wraps(made)
    def make(self, *arguments, **options):
        made(self, *arguments, **options)
        change(self)

    monkeypatch.setattr(kind, "__init__", make)


@pytest.fixture
def own(monkeypatch):
    return partial(extended, monkeypatch, MLP)


def buffer(module):
    module.register_buffer("table", torch.ones(3), persistent=False)


def modules(module):
    module.maps = {"a": [nn.Linear(2, 2)]}


NO_PART = (
    "is no parameter, persistent buffer or module of the model; a checkpoint would not hold it"
)
LOST = {
    buffer: "table is no persistent buffer: leave out persistent=False; a checkpoint would not",
    modules: f"maps {NO_PART}",
}


@pytest.mark.parametrize("change", LOST)
def test_what_no_checkpoint_would_hold(start, own, change):
    own(change)
    assert f"stack.blocks.0.ffn.{LOST[change]}" in start(*USE, code=2).err
    assert not list(Path("runs").glob("*"))


def test_an_objective_with_a_model(start, monkeypatch):
    extended(monkeypatch, NextToken, modules)
    assert f"error: objective.maps {NO_PART}" in start(code=2).err


def counts(objective, rows):
    objective.calls = getattr(objective, "calls", 0) + 1
    return rows


GENERATOR = np.random.default_rng(0)


def draws(objective, rows):
    return GENERATOR.permuted(rows)


@pytest.mark.parametrize("change", [counts, draws])
def test_an_objective_that_changes(start, monkeypatch, change):
    batch = NextToken.batch
    monkeypatch.setattr(
        NextToken, "batch", lambda self, rows, *rest: batch(self, change(self, rows), *rest)
    )
    assert "NextToken changes when it makes a batch" in start(code=2).err


def freeze(module):
    module.out.weight.requires_grad_(False)
    module.maps = [module.up, module.out.weight]  # another name of what is held


def test_frozen_weights_of_an_own_part(start, own):
    """They are in no checkpoint, but once in the run."""
    own(freeze)
    start(*USE, "name=full")
    start(*USE, "name=part", "train.steps=2")
    start("name=part", "resume=true", "train.steps=4")
    assert tensors("runs/part") == tensors("runs/full")
    held = load_file("runs/full/frozen.safetensors")
    assert held.keys() == {f"stack.blocks.{i}.ffn.out.weight" for i in range(2)}
    assert not held.keys() & load_file(newest("runs/full") / "model.safetensors").keys()
    loaded = load_run("runs/full").model.state_dict()
    assert all(torch.equal(loaded[name], held[name]) for name in held)


def test_a_frozen_weight_that_changes(start, own, monkeypatch):
    """A resumed run would have what it was before."""
    own(freeze)
    forward = MLP.forward

    def fill_and_forward(module, x):
        if not module.out.weight.requires_grad:
            module.out.weight.fill_(0.5)
        return forward(module, x)

    monkeypatch.setattr(MLP, "forward", fill_and_forward)
    assert "no frozen parameter may change" in start(*USE, code=2).err


REACHED = "the loss does not depend on stack.blocks.0.ffn.unused.weight, "


def test_a_parameter_without_a_gradient_is_named(start, own):
    own(lambda module: setattr(module, "unused", nn.Linear(3, 3)))
    assert start(*USE).err.count(f"warning: {REACHED}") == 1


def test_with_ddp_it_is_refused():
    """Which would wait for its gradient in the second step."""
    run = SimpleNamespace(model=nn.Linear(2, 2), world=SimpleNamespace(parallel="ddp", size=1))
    run.model(torch.ones(2)).sum().backward()
    check_gradients(run, [])
    run.model.bias.grad = None
    with refused("the loss does not depend on bias; use them, or call"):
        check_gradients(run, [])


class ScheduleFree(AdamW):
    """It trains y and evaluates their mean, x (in which each step counts half, for the test)."""

    def start_state(self, parameter):
        return super().start_state(parameter) | {"other": parameter.detach().clone()}

    def step(self, closure=None):
        super().step()
        for parameter, state in self.state.items():
            state["other"].lerp_(parameter.detach(), 0.5)

    def swap(self):
        for parameter, state in self.state.items():
            kept = parameter.detach().clone()
            parameter.copy_(state["other"])
            state["other"].copy_(kept)


def make_schedule_free(model, lr: float):
    return [ScheduleFree([{"params": [*model.parameters()]}], lr, 0.9, 0.95, 1e-8)]


def test_an_optimizer_with_weights_to_evaluate(run, start, monkeypatch):
    """A checkpoint has them, and a resumed run goes on with the others, to the byte."""
    monkeypatch.setitem(OPTIMIZERS, "own", make_schedule_free)
    use = ["optimizer=adamw", "optimizer.kind=own", *(f"~optimizer.{name}" for name in ADAMW)]
    use += [*USE, "eval.every=1"]
    start(*use, "name=full")
    start(*use, "name=part", "train.steps=2")
    start("name=part", "resume=true", "train.steps=4")
    assert content("runs/part") == content("runs/full")
    stored = load_file(newest("runs/full") / "optimizer.safetensors")
    evaluated = load_file(newest("runs/full") / "model.safetensors")
    assert not any(torch.equal(evaluated[name], stored[f"{name}.other"]) for name in evaluated)
    start("init_from=runs/full", "name=judged", "train.steps=0")
    assert last("runs/judged", "val_loss") == last("runs/full", "val_loss")


def test_processes_must_have_the_same_losses():
    """They are added up by position."""
    world = SimpleNamespace(size=2, sum=lambda code: torch.tensor(2 * code))
    run = SimpleNamespace(world=world)
    check_terms(run, ["loss", "a", "b"])
    world.sum = lambda code: torch.tensor(2 * code + 1)
    with refused("one process has the losses loss, a, b, and another not"):
        check_terms(run, ["loss", "a", "b"])
