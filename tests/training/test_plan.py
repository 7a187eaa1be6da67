"""The trial steps change nothing, and measure what a step costs."""

import math
import re
from functools import partial

import pytest
import torch

import train
from configs.cli import clock
from configs.compose import compose
from configs.registry import build
from model.transformer import build_model
from tests.training.runs import with_usual
from training.distributed import Dist
from training.optimizer import OPTIMIZERS
from training.plan import check_batch_size, plan
from training.profile import largest_fitting
from training.step import LossModule, TrainStep, seed_step


@pytest.fixture
def prepare(room):
    def prepare(*overrides):
        return train.prepare(compose(with_usual(overrides)), list(overrides))

    return prepare


@pytest.mark.parametrize(
    "overrides", ["model=modern", "model=t5 model.dropout=0.1", "precision=fp16"]
)
def test_trial_steps_change_nothing(prepare, overrides):
    """The first step is the same, bit for bit, for a model that made no trial steps."""
    run = prepare(*overrides.split())
    assert not run.optimizer.tensors() and all(p.grad is None for p in run.model.parameters())
    fresh = build_model(run.config.model, run.loaders.tokenizer.vocab_size, run.config.seed)
    optimizer = build("optimizer", OPTIMIZERS, run.config.optimizer, {"model": fresh})
    step = TrainStep(LossModule(fresh), optimizer, run.precision, Dist(), 4, 1.0)
    for train_step in (run.train_step, step):
        seed_step(0, 0)
        train_step(run.loaders.train.batch(0), 1.0)
    states = [{**s.model.state_dict(), **s.optimizer.tensors()} for s in (run.train_step, step)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    "context_length", [32, 600]
)  # beyond 512 targets the loss is computed in chunks
def test_flops_are_those_of_the_formula(prepare, context_length):
    """6 FLOPs per token and weight for forward and backward pass, and the attention products."""
    run = prepare("model=gpt2", f"model.context_length={context_length}", "train.batch_size=6")
    linear = sum(m.weight.numel() for m in run.model.modules() if isinstance(m, torch.nn.Linear))
    model = run.config.model
    attention = 12 * model.n_layers * context_length * model.d_model
    assert run.cost.flops == pytest.approx(6 * context_length * (6 * linear + attention), rel=0.02)


def test_activations_grow_with_the_batch(prepare):
    small, large = (prepare(f"train.batch_size={n}").cost for n in (2, 8))
    assert large.activation_bytes == pytest.approx(4 * small.activation_bytes, rel=0.01)
    assert large.optimizer_bytes == small.optimizer_bytes > 0
    split = prepare("train.batch_size=512", "train.micro_batch_size=2").cost
    assert split.activation_bytes == small.activation_bytes


def test_recomputed_blocks_are_counted_on_fake_tensors(prepare):
    whole, recomputed = (
        prepare("model=gpt2", f"train.recompute={how}").cost for how in ("none", "block")
    )
    assert recomputed.flops == whole.flops, "recomputing is no work of the model"
    assert 0 < recomputed.activation_bytes < whole.activation_bytes / 2


def test_micro_batches_on_a_cpu(prepare):
    assert prepare("train.batch_size=8").cost.micro_batch_size == 8
    wide = prepare("train.batch_size=1026").train_step.micro_batch_size
    assert wide == 342, "the largest divisor of the batch within 2**14 tokens"
    assert prepare("train.batch_size=6", "train.micro_batch_size=2").cost.micro_batch_size == 2


def test_a_failing_compiler_costs_a_warning(prepare, monkeypatch, capsys):
    def compile(module):
        def forward(*batch):
            raise RuntimeError("no compiler here\nand more")

        return forward

    monkeypatch.setattr(torch, "compile", compile)
    assert type(prepare("compile=true").train_step.train_module) is LossModule
    assert capsys.readouterr().err.endswith("warning: not compiled (no compiler here)\n")


@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_a_run_is_compiled(prepare, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    run = prepare("compile=true")
    assert isinstance(run.train_step.train_module, torch._dynamo.OptimizedModule)
    assert run.train_step(run.loaders.train.batch(0), 1.0).loss > 0


def test_the_plan(prepare):
    run = prepare("model=t5", "train.micro_batch_size=2")
    lines = dict(line.split(maxsplit=1) for line in plan(run).splitlines())
    n = sum(p.numel() for p in run.model.parameters())
    total, parts = lines["model"].removeprefix("encoder_decoder, ").split(" parameters: ")
    sizes = dict(part.rsplit(" ", 1) for part in parts.split(", "))
    assert total == f"{n:,}" and sum(int(size.replace(",", "")) for size in sizes.values()) == n
    cross = sum(p.numel() for name, p in run.model.named_parameters() if ".cross." in name)
    assert int(sizes["cross-attention"].replace(",", "")) == cross
    assert lines["training"].startswith("4 steps of 4 sequences, ")
    assert "tokens, 2 micro-batches of 2; " in lines["training"]
    assert re.fullmatch(r"[\d,]+ tokens, vocab \d+, \d+ sequences", lines["data"])
    assert re.fullmatch(r"uniform 5\.\d\d, unigram \d\.\d\d nats/token", lines["baselines"])
    assert re.fullmatch(r"\d\.\d+e\+\d+ FLOPs/step, \d\.\d+e\+\d+ total", lines["compute"])
    assert re.fullmatch(r"about \d+ s, [\d,]+ ms per step", lines["time"])


def test_clock():
    assert [clock(seconds) for seconds in (0.4, 62, 3599.7, 3725)] == [
        "0:00",
        "1:02",
        "1:00:00",
        "1:02:05",
    ]


def test_a_batch_splits_evenly():
    train = compose(["train.batch_size=6", "train.micro_batch_size=2"]).train
    check_batch_size(train, 3)
    with pytest.raises(
        ValueError, match="train.batch_size is 6; .* multiple of the 4 processes, such as 4 or 8"
    ):
        check_batch_size(train, 4)
    with pytest.raises(
        ValueError, match="train.batch_size is 6; .* of the 8 processes, such as 8$"
    ):
        check_batch_size(train, 8)
    with pytest.raises(
        ValueError, match="train.micro_batch_size is 2; expected a divisor of 3 .*, such as 1$"
    ):
        check_batch_size(train, 2)


@pytest.mark.parametrize(
    ("fixed", "per_row", "limit", "expected"),
    [
        (10, 1, 22, 12),
        (10, 1, 13, 4),
        (10, 1, 100, 24),
        (10, 100, 50, 1),
        (10, 1, 17.9, 8),
        (10, 0, 10, 24),
    ],
)
def test_the_largest_micro_batch_that_fits(fixed, per_row, limit, expected):
    sizes, tried = [24, 12, 8, 6, 4, 3, 2, 1], []

    def peak(n):
        tried.append(n)
        return fixed + (n - 1) * per_row

    assert largest_fitting(sizes, peak, limit) == expected
    assert tried == list(dict.fromkeys([1, 2, expected])), "no size is tried that cannot fit"


def test_a_micro_batch_that_fits_less_than_predicted():
    """Two rows may share what more rows do not: then the next smaller size is tried."""
    assert largest_fitting([8, 4, 2, 1], lambda n: {1: 1, 2: 1, 4: 9, 8: math.inf}[n], 9) == 4
    with pytest.raises(MemoryError, match="not even one row"):
        largest_fitting([2, 1], lambda n: math.inf, 9)
