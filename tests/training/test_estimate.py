"""dry_run=plan: counts without a model, what fits on other hardware, and what it costs."""

import re

import pytest
import torch

from configs.compose import compose
from model.transformer import build_model
from tests.training.runs import with_usual
from training.estimate import count, count_layers, memory, vocab_size


@pytest.mark.parametrize("overrides", ["model=gpt2", "model=t5", "model=bert optimizer=adamw"])
def test_counts_are_those_of_the_model(overrides):
    config = compose([*overrides.split(), "size=tiny", "model.n_layers=4"])
    counts = count(config, torch.float32)
    assert tuple(counts) == pytest.approx(tuple(count_layers(config, torch.float32)), rel=0.01)
    model = build_model(config.model, vocab_size(config))
    assert counts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert 0 < counts.recomputed < counts.activations


def test_what_is_divided_among_the_processes():
    counts = count(compose(["model=llama", "size=124m"]), torch.bfloat16)
    sizes = {n: memory(counts, "fsdp", "none", n, 0, torch.bfloat16) for n in (2, 4, 8)}
    states = 8 * counts.parameters + counts.optimizer
    assert sizes[2] - sizes[4] == states / 4 and sizes[4] - sizes[8] == states / 8
    assert memory(counts, "ddp", "none", 8, 0, torch.bfloat16) > sizes[2]


def test_the_estimate(start):
    plan = ["dry_run=plan", "model=llama", "train.batch_size=128"]
    code, output, _ = start(*plan, "world=64", "size=7b", "tokenizer=gpt2")
    rows = dict(
        re.findall(r"parallel=(\w+ train.recompute=\w+) train.micro_batch_size=\d+ +(\S.*)", output)
    )
    assert code == 0 and "steps of 128 rows" in output
    assert {way: "not" in fits for way, fits in rows.items()} == {
        "ddp train.recompute=none": True, "fsdp train.recompute=none": False,
        "ddp train.recompute=block": True, "fsdp train.recompute=block": False,
    }  # fmt: skip
    assert "cheapest    parallel=fsdp train.recompute=none" in output
    half = start(*plan, "world=64", "size=7b", "tokenizer=gpt2", "plan.mfu=0.2")[1]
    cost, twice = (
        float(re.search(r"([\d,]+) GPU hours", text)[1].replace(",", "")) for text in (output, half)
    )
    assert twice == pytest.approx(2 * cost, rel=0.1)
    assert "none of these fits" in start(*plan, "size=7b", "gpu=T4")[1]
    for wrong in (
        "gpu=H1000",
        "world=3",
        "world=2 parallel=none",
        "train.steps=null train.minutes=60",
    ):
        assert start("dry_run=plan", *wrong.split())[0] == 2, wrong
    assert (
        " 16 steps " in start("dry_run=plan", "train.tokens=2048", "train.steps=99", "gpu=h100")[1]
    )


def test_the_preview(start):
    """What dry_run=true prints first is what it finds in the trial steps."""
    code, output, _ = start("dry_run=true", "model=gpt2")
    first, plan = output.split("\n\n")
    row, step = (float(re.search(r"([\d.e+]+) FLOPs", text)[1]) for text in (first, plan))
    parameters = {re.search(r"([\d,]+) parameters", text)[1] for text in (first, plan)}
    assert " at vocab 257:" in first and "vocab 257," in plan
    assert code == 0 and len(parameters) == 1 and 4 * row == pytest.approx(step, rel=0.01)
    assert start("dry_run=true", "data.path=nowhere")[1].startswith("estimate"), (
        "before any text is read"
    )


def test_a_plan_reads_no_text(start):
    overrides = [o for o in with_usual(["dry_run=plan"]) if not o.startswith("data.path")]
    assert start.plainly(*overrides, "data.path=nowhere")[0] == 0
