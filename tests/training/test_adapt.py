"""adapt= trains a part of a model: thin matrices beside its linear maps, or its last blocks."""

import json
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from configs.errors import CheckpointError
from model.adapt import adapt, adapters_of, merge_adapters
from model.checkpoint import load_run
from model.hub.__main__ import main as hub
from tests.model.helpers import randn
from tests.model.hub.hub_models import build_hf, save
from tests.parts import alive, part, thin, tiny, tokens
from tests.training.runs import newest, tensors
from tests.training.test_update import assert_equal

LORA = part("adapt", "lora")
LORA_OF_HF = ["adapt=lora", "init_from=hf", "name=tuned", "train.steps=2", "optimizer.lr=0.1"]
KINDS = ["adapt=lora adapt.dropout=0.1", "adapt=freeze adapt.last=1"]
every_kind = pytest.mark.parametrize("kind", thin(KINDS, KINDS[:1]))


def filled(net):
    """With adapters that change it."""
    for i, adapter in enumerate(adapters_of(net).values()):
        adapter.up.data = randn(*adapter.up.shape, seed=i).to(adapter.up) / 9
    return net


@pytest.mark.parametrize("attention", ["mha", "mla"])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_adapters_start_from_the_base_and_merge_into_it(attention, dtype, bound):
    net = alive(tiny(attention=part("attention", attention))).to(dtype)
    inputs = tokens(2, 9)
    base = net(inputs)
    adapt(net, LORA, seed=3)
    assert (net(inputs) - base).abs().max() <= bound
    adapted = filled(net)(inputs)
    assert (adapted - base).abs().max() > 0.1
    caches = net.new_caches(9)  # a token at a time, MLA takes another form
    pieces = [net(piece, caches=caches) for piece in inputs.split([8, 1], 1)]
    assert (torch.cat(pieces, 1) - adapted).abs().max() <= bound
    merge_adapters(net)
    assert not adapters_of(net)
    assert (net(inputs) - adapted).abs().max() <= bound


@pytest.fixture
def tune(start):
    """tune(*overrides) -> what a run that starts from runs/base prints"""
    start("name=base", "model=gpt2", "sample.every=null")
    usual = ["schedule=constant", "schedule.warmup=1", "ema.decay=0.9", "init_from=runs/base"]
    return partial(start, *usual)


@every_kind
def test_only_what_is_trained_is_saved_and_resumed_to_the_byte(tune, start, kind):
    assert " trained\n" in tune("name=full", *kind.split()).out
    tune("name=part", *kind.split(), "train.steps=2")
    start("name=part", "resume=true", "train.steps=4")
    assert tensors("runs/part") == tensors("runs/full")

    names = load_file(newest("runs/full") / "model.safetensors").keys()
    ends = ("down", "up") if "lora" in kind else ("weight", "bias")
    starts = "stack.blocks." if "lora" in kind else ("stack.blocks.1.", "stack.final_norm.")
    assert names and all(name.startswith(starts) and name.endswith(ends) for name in names)
    for file in tensors("runs/full"):
        keys = load_file(newest("runs/full") / file)
        assert all(key.startswith(tuple(names)) for key in keys)

    before = load_run("runs/base").model.state_dict()
    after = load_run("runs/full", merge=False).model.state_dict()
    after = {name.replace(".linear.", "."): tensor for name, tensor in after.items()}
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == before.keys() - names


@every_kind
def test_a_run_holds_all_it_needs(tune, start, kind):
    """What it started from may be trained further or be gone; it may be a run of adapters itself."""
    tune("name=one", *kind.split())
    tune("name=two", *kind.split(), "init_from=runs/one")
    before = load_run("runs/two").model.state_dict()
    start("name=base", "resume=true", "train.steps=6", "checkpoint.keep=1")
    shutil.rmtree("runs/base")
    tune("name=full", *kind.split(), "init_from=runs/one", "train.steps=6")
    start("name=one", "resume=true", "train.steps=6")
    shutil.rmtree("runs/one")
    assert_equal(load_run("runs/two").model.state_dict(), before)
    start("name=two", "resume=true", "train.steps=6")
    assert tensors("runs/two") == tensors("runs/full")


def frozen(name):
    return Path(f"runs/{name}/frozen.safetensors")


def test_runs_share_the_file_of_what_is_frozen(tune, monkeypatch):
    tune("name=one", "adapt=lora", "train.steps=1")
    tune("name=two", "adapt=lora", "train.steps=1", "adapt.rank=4")
    assert frozen("one").samefile(frozen("two"))

    def link(*places):
        raise OSError("no links on this disk")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        tune("name=copy", "adapt=lora", "train.steps=1")
    assert not frozen("copy").samefile(frozen("one"))
    assert frozen("copy").read_bytes() == frozen("one").read_bytes()
    for name in ("one", "two"):
        shutil.rmtree(f"runs/{name}")
    tune("name=other", "adapt=lora", "train.steps=1", "adapt.layers=query")
    [kept] = Path("runs/.frozen").iterdir()
    assert kept.samefile(frozen("other")), "what no run has is deleted"
    load_run("runs/copy")


def test_frozen_weights_that_are_damaged(tune, start):
    """They are never used, not even by another run that would share them."""
    tune("name=one", "adapt=lora", "train.steps=1")
    path = frozen("one")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    sentence = "runs/one/frozen.safetensors is damaged: its checksum does not match"
    assert sentence in start("name=one", "resume=true", "train.steps=2", code=4).err
    with pytest.raises(CheckpointError, match=sentence):
        load_run("runs/one")
    tune("name=two", "adapt=lora", "train.steps=1")
    load_run("runs/two")


def test_the_disk_must_have_room_for_them(tune, monkeypatch):
    """A run of one step would need less than the weights that it freezes."""
    few = ["adapt=lora", "adapt.layers=query", "train.steps=1"]
    tune("name=one", *few)
    room = SimpleNamespace(free=frozen("one").stat().st_size)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    assert "and the disk has" in tune("name=two", *few, code=6).err
    assert not Path("runs/two").exists()


WRONG = {
    "adapt=lora adapt.layers=querry": "adapt (lora): layers is 'querry', which matches no name",
    "adapt=lora adapt.layers=(": "layers is '(', which is not a regular expression (missing )",
    "adapt=lora optimizer=muon": "matrices to train, and none is trained; choose optimizer=l",
    "adapt=freeze adapt.last=3": "adapt (freeze): last is 3, and the model has 2 blocks",
    "adapt=lora init_from=null": "adapt= trains a part of a trained model: add init_from=",
}


def test_wrong_settings(tune, start):
    for overrides, reason in WRONG.items():
        assert reason in tune("name=wrong", *overrides.split(), code=2).err
    assert not Path("runs/wrong").exists()
    tune("name=mine", "adapt=lora", "train.steps=1")
    errors = start("name=mine", "resume=true", "adapt=lora", "adapt.rank=4", code=2).err
    assert "adapt.rank was 8 in this run and is now 4; it cannot change" in errors


EXPORT = ["export", "--run", "runs/tuned", "--to"]
# 32 is the width: shapes do not tell what is transposed
ADAPTED = [("gpt2, scores not scaled", 32), ("llama, one key for all, tied", 8)]


@pytest.mark.parametrize("name, rank", ADAPTED)
def test_transformers_reads_merged_weights_and_peft_adapters(name, rank, start, command):
    """Of GPT-2, matrices are transposed, and three adapters are one."""
    base = save(build_hf(name), Path("hf"))
    start(*LORA_OF_HF, f"adapt.rank={rank}")
    net = load_run("runs/tuned").model
    command(hub, *EXPORT, "merged")  # which compares the logits with those of transformers
    command(hub, *EXPORT, "adapter", "--adapter")

    inputs = torch.arange(40)[None]
    peft = json.loads(Path("adapter/adapter_config.json").read_text())
    adapters = load_file("adapter/adapter_model.safetensors")
    model = hf.AutoModelForCausalLM.from_pretrained(base)
    for module in peft["target_modules"]:
        down, up = (adapters[f"base_model.model.{module}.lora_{end}.weight"] for end in "AB")
        assert len(down) == peft["rank_pattern"][module] == peft["alpha_pattern"][module]
        added = (up @ down).T if peft["fan_in_fan_out"] else up @ down
        model.get_submodule(module).weight.data += added
    with torch.no_grad():
        torch.testing.assert_close(model(inputs).logits, net(inputs), atol=1e-5, rtol=1e-5)


REFUSED = {
    "adapt.layers=value": "value.weight is one with others in gpt2",
    "model.ffn.kind=relu": 'model.ffn.kind is "relu"; only "gelu_tanh" is supported',
}


@pytest.mark.parametrize("change", REFUSED)
def test_an_adapter_that_the_model_of_transformers_cannot_have(change, start, command):
    save(build_hf("gpt2"), Path("hf"))
    start(*LORA_OF_HF, change)
    assert REFUSED[change] in command(hub, *EXPORT, "adapter", "--adapter", code=4).err
    assert not Path("adapter").exists()
