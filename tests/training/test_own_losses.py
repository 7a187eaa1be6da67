"""What a module of one's own adds to the loss, metrics of one's own, and an average of the weights."""

import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from data.objectives import NextToken
from model.checkpoint import load_run
from model.feedforward import FFNS, MLP
from model.loss import loss
from model.transformer import ARCHITECTURES, Decoder, build_model
from tests.parts import VOCABULARY, part, refused, tiny
from tests.training.runs import rows, tensors
from tests.training.test_update import (
    after_sgd,
    assert_equal,
    cross_entropy,
    make_batch,
    sgd,
    updater,
    with_loss,
)
from training.compile import recompute_blocks
from training.metrics import METRICS
from training.optimizer import AdamW


class Own(MLP):
    """Its outputs should be small."""

    def forward(self, x):
        y = super().forward(x)
        self.mean = y.square().mean()
        return y

    def losses(self):
        return {"size": 0.5 * self.mean}


@pytest.fixture(autouse=True)
def own(monkeypatch):
    for kind, cls in {"own": Own, "counted": Counted, "stateful": Stateful}.items():
        monkeypatch.setitem(FFNS, kind, partial(cls, activation=torch.relu, gated=False))


def make_model(kind="own"):
    return build_model(tiny(ffn=part("ffn", "relu", kind=kind)), VOCABULARY, seed=3).double()


def test_it_is_weighted_by_the_targets_of_each_micro_batch():
    """And no part of a validation loss."""
    model, batch = make_model(), make_batch()
    total = 0
    for micro in (batch.rows(0, 4), batch.rows(4, 6)):
        total = total + cross_entropy(model, micro, "sum")
        for block in model.stack.blocks:
            total = total + micro.count * block.ffn.losses()["size"]
    module = with_loss(model)
    assert module(*batch)["size"] > 0 and "size" not in module.eval()(*batch)
    _, expected = after_sgd(model, total / batch.count)
    updater(model, sgd(model), rows=4)(batch)
    torch.testing.assert_close(list(model.parameters()), expected, rtol=1e-9, atol=1e-12)


class Counted(Own):
    """Those that begin with a positive number should be small: not all tokens are."""

    def forward(self, x):
        y = MLP.forward(self, x)
        squares = y.square().mean(-1)
        is_counted = y[..., 0] > 0
        self.term = squares[is_counted].sum(), is_counted.sum()
        return y

    def losses(self):
        return {"size": self.term}


@pytest.mark.parametrize("rows", [6, 4, 1])
def test_a_term_with_a_count_of_its_own_does_not_change_with_the_micro_batch(rows):
    """Its sum is divided by its count in the whole step."""
    model, batch = make_model("counted"), make_batch()
    loss = cross_entropy(model, batch)
    size = sum(torch.div(*block.ffn.term) for block in model.stack.blocks)
    _, expected = after_sgd(model, loss + size)
    losses = updater(model, sgd(model), rows)(batch).losses
    assert losses["size"] == pytest.approx(size.item(), rel=1e-6)
    torch.testing.assert_close(list(model.parameters()), expected, rtol=1e-6, atol=1e-7)


def test_a_term_may_be_a_number(monkeypatch):
    monkeypatch.setattr(Own, "losses", lambda own: {"size": 0.0})
    assert with_loss(make_model())(*make_batch())["size"].item() == 0


def test_a_term_that_is_counted_later(monkeypatch):
    """Its count is known before the first backward pass of a step, or it is refused."""
    module = with_loss(make_model())
    module.terms.needs_ratios = False  # as after a step without counts
    monkeypatch.setattr(Own, "losses", lambda own: {"size": (own.mean, 2)})
    with refused("size was not .sum, count. in the first step"):
        module(*make_batch())


def test_weights_are_factors_of_the_cross_entropy_of_each_target():
    """The loss is still divided by the number of targets."""
    model, batch = make_model(), make_batch()
    weights = torch.linspace(0, 2, batch.targets.numel()).view_as(batch.targets)
    logits = model(**batch.inputs)
    each = torch.nn.functional.cross_entropy(logits.mT, batch.targets, reduction="none")
    module = with_loss(model)
    for mode, expected in ((True, weights * each), (False, each)):  # not in evaluations
        found = module.train(mode)(*batch, weights)["loss"]
        torch.testing.assert_close(found, expected.sum())


class Preference(Decoder):
    """The main loss is its own: rows in pairs, of which the first is to be the likelier one."""

    def loss(self, hidden, targets):
        total = hidden.new_zeros(())
        for states, row in zip(hidden, targets, strict=True):
            total = total + 2 * loss(states, self.head, row)[0]
        return total


def test_an_architecture_with_a_main_loss_of_its_own(start, monkeypatch):
    """It is that of training and of validation, which says so, and no perplexity."""
    monkeypatch.setitem(ARCHITECTURES, "own", Preference)
    monkeypatch.setattr(NextToken, "architectures", (*NextToken.architectures, "own"))
    use = ["schedule=constant", "log.every=1", "eval.every=4"]
    smooth = start("model.kind=own", "loss.z_loss=0.01", *use, code=2).err
    assert "this model has a loss() of its own" in smooth
    own = start("name=own", "model.kind=own", *use).out
    assert "loss        that of Preference.loss, also as val_loss" in own
    start("name=plain", *use)
    for name in ("loss", "val_loss"):
        [first, *_] = rows("runs/own", name)
        [plain, *_] = rows("runs/plain", name)
        assert first[0] == pytest.approx(2 * plain[0], rel=1e-5)
    assert rows("runs/plain", "val_ppl") and not rows("runs/own", "val_ppl")


class Stateful(Own):
    """Its gain grows with each forward pass, before it is used."""

    passes = 0

    def forward(self, x):
        self.passes += 1
        self.gain += 0.5
        return super().forward(x) * self.gain.clone()


def test_a_second_forward_pass_leaves_no_trace():
    """With train.recompute=block: it begins with the buffers of the first."""
    found = []
    for is_recomputed in (False, True):
        model = make_model("stateful")
        for block in model.stack.blocks:
            block.ffn.register_buffer("gain", torch.ones((), dtype=torch.float64))
        if is_recomputed:
            recompute_blocks(model)
        module = with_loss(model)
        sum(module(*make_batch()).values()).backward()
        ffn = model.stack.blocks[1].ffn
        assert (ffn.gain, ffn.passes) == (1.5, 1)
        found.append([ffn.mean, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "losses, code, sentence",
    [
        ({"val_loss": torch.tensor(1.0)}, 2, "the name 'val_loss', which is taken; rename it"),
        ({"parameters": torch.tensor(1.0)}, 2, "the name 'parameters', which is taken"),
        ({"size": torch.tensor(torch.inf)}, 5, "step 1: the size is not finite"),
    ],
)
def test_what_is_no_loss_is_refused(start, monkeypatch, losses, code, sentence):
    monkeypatch.setattr(Own, "losses", lambda self: losses)
    assert re.search(f"error: .*{sentence}", start("ffn=relu", "model.ffn.kind=own", code=code).err)


def test_a_metric_of_ones_own(run, monkeypatch):
    """It sees the model in eval mode, without dropout, and changes no weight."""

    def own(run):
        assert not run.model.training and not torch.is_grad_enabled()
        return {"own": float(run.state.step)}

    monkeypatch.setitem(METRICS, "own", own)
    folder = run("metrics.names=[own]", "metrics.every=2", "model.dropout=0.1")
    assert rows(folder, "step", "own") == [(2, 2.0), (4, 4.0)]
    assert tensors(folder) == tensors(run("model.dropout=0.1"))


def test_the_average_of_the_weights(run):
    """It follows the weights at its own pace, and is what is evaluated and loaded."""
    options = ["ema.decay=0.6", "eval.every=1", "eval.max_examples=99", "checkpoint.keep=9"]
    folder = run(*options, "checkpoint.every=1")
    places = [folder / f"checkpoints/step-{step:08}" for step in range(1, 5)]
    average = load_file(places[0] / "ema.safetensors")
    for step, place in enumerate(places[1:], 2):
        trained = load_file(place / "model.safetensors")
        stored = load_file(place / "ema.safetensors")
        decay = min(0.6, step / (step + 10))
        for name, weight in average.items():
            average[name] = weight.lerp(trained[name], 1 - decay)
            assert torch.allclose(stored[name], average[name], atol=1e-7), name
    assert_equal(load_run(folder).model.state_dict(), stored)
    assert rows(folder, "val_loss") != rows(run(*options[1:]), "val_loss")


def test_state_that_no_checkpoint_holds_is_refused(start, monkeypatch):
    """It appears later, or in the groups of an optimizer: a run that resumes would lack it."""
    step = AdamW.step

    def counting(self):
        step(self)
        self.param_groups[0]["eps"] *= 2

    changes = {"start_state": lambda self, parameter: {}, "step": counting}
    for name, change in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(AdamW, name, change)
            errors = start("optimizer=adamw", code=2).err
            assert "a checkpoint would not hold what a step has changed" in errors
