"""The rehearsal leaves nothing behind, and tells what a step costs."""

import pytest
import torch

import train
from configs.compose import compose
from tests.training.runs import with_usual
from training.distributed import shut_down
from training.plan import plan, profile_step, sizes
from training.run import check_division
from training.step import LossModule, seed_step, update


@pytest.fixture
def prepared(room):
    def made(*words):
        return train.prepare(compose(with_usual(words)), room / "runs")

    yield made
    shut_down()


@pytest.mark.parametrize("words", [["model=modern"], ["model=t5", "model.dropout=0.1"], ["precision=fp16"]])
def test_nothing_is_left_of_it(prepared, words):
    """A step after a rehearsal is the step without one, to the bit."""
    states = []
    for rehearsed in (True, False):
        run = prepared(*words)
        _, cost = profile_step(run)
        if not rehearsed:
            again = prepared(*words)
            again.settle(cost)
            run = again
        else:
            run.settle(cost)
        assert not run.optimizer.tensors() and all(p.grad is None for p in run.model.parameters())
        seed_step(0, 0)
        update(LossModule(run.model), run.loaders.train.batch(0), 1.0, run.way)
        states.append({**run.model.state_dict(), **run.optimizer.tensors()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("context_length", [32, 600])  # beyond 512 targets the loss goes in chunks
def test_operations_are_those_of_the_formula(prepared, context_length):
    """Forward and backward, of a token: six for each weight of a linear map, and attention's products."""
    run = prepared("model=gpt2", "train.batch_size=6", f"model.context_length={context_length}")
    _, cost = profile_step(run)
    linear = sum(m.weight.numel() for m in run.model.modules() if isinstance(m, torch.nn.Linear))
    config = run.config.model
    tokens = 6 * config.context_length
    products = 12 * config.n_layers * config.context_length * config.d_model
    assert cost.flops == pytest.approx(tokens * (6 * linear + products), rel=0.02)


def test_memory_of_a_wider_batch_is_more(prepared):
    small, large = (profile_step(prepared(f"train.batch_size={n}"))[1] for n in (2, 8))
    assert large.activations == pytest.approx(4 * small.activations, rel=0.01)
    assert large.remembered == small.remembered > 0


def test_micro_batches_on_a_cpu_follow_a_rule(prepared):
    assert profile_step(prepared("train.batch_size=8"))[1].micro_batch_size == 8
    wide = profile_step(prepared("train.batch_size=1026"))[1].micro_batch_size
    assert wide == 342, "a divisor of the rows that stays within 2**14 tokens"
    assert profile_step(prepared("train.batch_size=6", "train.micro_batch_size=2"))[1].micro_batch_size == 2


def test_a_compiler_that_fails_costs_a_line(prepared, monkeypatch, capsys):
    def broken(module):
        def asked(*batch):
            raise RuntimeError("no compiler here\nand more")

        return asked

    monkeypatch.setattr(torch, "compile", broken)
    asked, _ = profile_step(prepared("compile=true"))
    assert type(asked) is LossModule
    assert capsys.readouterr().err.endswith("warning: not compiled (no compiler here)\n")


def test_the_plan_counts(prepared):
    run = prepared("model=gpt2")
    _, cost = profile_step(run)
    run.settle(cost)
    said = plan(run, cost)
    assert f"{sum(p.numel() for p in run.model.parameters()):,} parameters" in said
    assert sum(sizes(run.model).values()) == sum(p.numel() for p in run.model.parameters())
    assert "4 steps of 4 windows, 128 tokens" in said
    assert "a loss of 5.55 where all words are alike" in said, "ln 257"


def test_a_batch_divides():
    config = compose(["train.batch_size=6"])
    for world, sentence in ((4, "does not divide among 4 processes"), (3, None)):
        ranks = type("Ranks", (), {"world": world})
        if sentence:
            with pytest.raises(ValueError, match=sentence):
                check_division(config, ranks)
        else:
            check_division(config, ranks)
