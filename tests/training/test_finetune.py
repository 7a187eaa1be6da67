"""init_from= starts a new run from the weights of another."""

from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from data.objectives import NextToken
from model.runs import list_checkpoints
from model.transformer import ARCHITECTURES, Decoder
from tests.training.runs import last


@pytest.fixture
def tune(start):
    """tune(*overrides) -> what a run that starts from runs/base prints"""
    start("name=base", "model=gpt2", "sample.every=null")
    return partial(start, "init_from=runs/base", "name=tuned")


@pytest.mark.parametrize(
    "override, kind, lr",
    [
        ("eval.every=1", "adamw", 1e-4),
        ("optimizer.lr=3e-5", "adamw", 3e-5),
        ("optimizer=muon", "muon", 0.02),
    ],
)
def test_it_starts_where_the_other_ended(tune, override, kind, lr):
    """With AdamW: Muon is chosen only by name."""
    tune(override, "train.steps=0")
    before = last("runs/base", "val_loss", "full")
    assert last("runs/tuned", "val_loss", "full") == before, "zero steps only evaluate"
    stored = yaml.safe_load(Path("runs/tuned/config.yaml").read_text())
    assert (stored["optimizer"]["kind"], stored["optimizer"]["lr"]) == (kind, lr)
    assert stored["tokenizer"]["kind"] == "byte" and stored["objective"]["kind"] == "next_token"
    assert "size" not in stored["choices"]


def test_only_a_shorter_context_and_dropout_may_be_set(tune):
    tune("model.context_length=16", "model.dropout=0.1", "train.steps=1")
    long, short = (
        load_file(list_checkpoints(Path("runs", run))[-1] / "model.safetensors")
        for run in ("base", "tuned")
    )
    [position] = [name for name in short if short[name].shape != long[name].shape]
    assert short[position].equal(long[position][:16])
    errors = tune("model.context_length=64", "name=longer", code=2).err
    assert "model.context_length is 64, and runs/base has 32; it can only" in errors
    for override in ("size=tiny", "tokenizer=byte", "model.n_layers=1", "attention=mla"):
        errors = tune(override, "name=other", code=2).err
        assert f"{override.partition('=')[0]} conflicts with init_from, which sets" in errors
    errors = tune("model.attention.kind=mqa", "model.context_length=16", "name=other", code=2).err
    assert "attention.key.weight has the shape [64, 64] in init_from and [16, 64]" in errors
    assert not Path("runs/other").exists()


@pytest.mark.parametrize("every", ["2", "null"])
def test_a_model_that_gets_worse_keeps_its_first_weights(tune, every):
    worse = ["optimizer.lr=1", "schedule=constant", f"eval.every={every}", "checkpoint.keep=1"]
    output = tune(*worse).out
    assert Path("runs/tuned/checkpoints/best").read_text() == "step-00000000\n"
    assert "warning: the model was better before training; try a lower optimizer.lr\n" in output
    assert "the best checkpoint is that of step 0 " in output
    assert output.count(" --checkpoint best\n") == 1
    assert len(list_checkpoints(Path("runs/tuned"))) == 2


class Wider(Decoder):
    """A decoder with a map of its own."""

    def make_stacks(self, config, sizes):
        super().make_stacks(config, sizes)
        self.second = torch.nn.Linear(config.d_model, config.d_model)

    def losses(self):
        return {"size": self.second.weight.square().mean()}


def test_another_kind_takes_over_the_weights(tune, start, monkeypatch):
    """What is new is initialized and named; what would be lost is refused."""
    monkeypatch.setitem(ARCHITECTURES, "wider", Wider)
    monkeypatch.setattr(NextToken, "architectures", (*NextToken.architectures, "wider"))
    output = tune("model.kind=wider", "train.steps=0").out
    assert "newly initialized: second.bias, second.weight\n" in output
    loss = "val_loss", "full"
    assert last("runs/tuned", *loss) == last("runs/base", *loss)
    start("init_from=runs/base", "model.kind=wider", "name=wider", "train.steps=1")
    back = ["init_from=runs/wider", "model.kind=decoder", "name=back"]
    sentence = "second.bias of init_from is not in the new model; remove the kind= that has no"
    assert sentence in start(*back, code=2).err


def test_places_that_are_no_runs(start):
    Path("runs/mine").mkdir(parents=True)
    assert "no folder gpt2; a model of the Hub" in start.plainly("init_from=gpt2", code=4).err
    errors = start.plainly("init_from=runs/mine", code=4).err
    assert "runs/mine is not the folder of a run: it has no config.yaml" in errors
