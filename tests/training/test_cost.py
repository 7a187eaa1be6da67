"""A dry run: what a run would cost, counted without a model or a text."""

import re
import resource
from pathlib import Path

import pytest
import torch

from configs.compose import compose
from model.adapt import adapt
from model.feedforward import MLP
from model.precision import Precision
from model.transformer import build_model
from training.cost import count
from training.optimizer import build_optimizers, state_tensors

FP32 = Precision(torch.device("cpu"), torch.float32, "")
GPT2 = "model=gpt2 optimizer=adamw adapt="
COUNTED = ["model=t5", "model=bert optimizer=adamw", GPT2 + "lora", GPT2 + "freeze"]
DRY = ["dry_run=true", "data.path=nowhere"]


@pytest.mark.parametrize("overrides", COUNTED)
def test_counts_are_those_of_the_model(overrides):
    config = compose([*overrides.split(), "size=tiny"])
    cost = count(config, FP32, 256)
    model = build_model(config.model, 256)
    adapt(model, config.adapt)
    optimizers = build_optimizers(config.optimizer, model)
    weights = list(model.parameters())
    assert [w.shape for w in cost.model.parameters()] == [w.shape for w in weights]
    assert cost.states == {
        "weights": sum(weight.nbytes for weight in weights),
        "gradients": sum(weight.nbytes for weight in weights if weight.requires_grad),
        "optimizer": sum(t.nbytes for t in state_tensors(model, optimizers).values()),
        "EMA": 0,
    }
    config.train.recompute = "block"
    recomputed = count(config, FP32, 256)
    assert 0 < recomputed.activations < cost.activations
    assert recomputed.flops == cost.flops, "recomputing is no work of the model"


@pytest.mark.parametrize("attention", ["mha", "gqa", "mha model.attention.logit_softcap=9"])
def test_flops_are_those_of_the_formula(attention):
    """6 per token and weight for forward and backward pass, and the products of attention."""
    config = compose(["model=gpt2", "size=tiny", *f"attention={attention}".split()])
    model, length = config.model, config.model.context_length
    built = build_model(model, 256)
    linear = sum(m.weight.numel() for m in built.modules() if isinstance(m, torch.nn.Linear))
    products = 2 * model.n_layers * length * model.d_model
    flops = count(config, FP32, 256).flops
    assert flops == pytest.approx(6 * length * (linear + products), rel=0.02)


def test_a_dry_run_reads_no_text_and_makes_no_folder(start, room):
    before = sorted(room.iterdir())
    output = start(*DRY, "name=plan", "model=gpt2").out
    assert sorted(room.iterdir()) == before
    lines = [
        r"model +decoder, [\d,]+ parameters at vocab 257",
        r" +ffn [\d,]+, attention [\d,]+, embedding [\d,]+, .*norm [\d,]+",
        r"step +4 rows of up to 32 tokens",
        r"compute +\S+ FLOPs per row",
        r"memory +weights .*, gradients .*, optimizer .*, activations .* per row",
        r" +parallel=none train.micro_batch_size=4: .*",
        r"checkpoint .*",
        r"training +4 steps, 512 tokens, \S+ FLOPs\n",
    ]
    assert re.fullmatch(r"\n".join(lines), output), output
    output = start(*DRY, "model=bert", "train.epochs=3", "schedule.warmup=2").out
    assert "at vocab 258\n" in output  # with a token for masks
    assert "a length unknown until the text is read" in output


def test_a_large_model_takes_no_memory(start):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = """
        model=llama size=7b tokenizer=gpt2 model.context_length=4096 train.batch_size=128
        train.steps=99999 plan.world=64 plan.gpu=h100 plan.mfu=0.2 precision=auto
    """
    output = start(*DRY, *plan.split()).out
    assert "decoder, 6,313,357,312 parameters" in output
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "in KiB"
    ways = re.findall(r"parallel=(\w+) train.micro_batch_size=\d+: .*, (\w+) ", output)
    assert ways == [("ddp", "does"), ("fsdp", "of")], "it does not fit, or takes so much of"
    assert re.search(r"49.6 hours at plan.mfu=0.2, 3,172.3 GPU hours, \$7,931 at", output)


def test_a_part_that_cannot_be_counted(start, monkeypatch):
    monkeypatch.setattr(MLP, "forward", lambda mlp, x: x * x.max().item())
    output, errors = start(*DRY, "model=gpt2")
    assert output == "model       decoder, cost unknown\n"
    assert errors.startswith("warning: the FLOPs and the memory of this model are unknown (")
    assert not Path("runs").exists()
