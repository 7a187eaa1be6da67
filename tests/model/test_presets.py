"""Every preset: with any other part, at every size, and as large as published.

That a swap changes only its part is a property of the YAML files, so their text is checked; Hydra
composes each preset once, and a few swaps.
"""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from configs.compose import compose
from model.transformer import build_model
from tests.parts import CONFIGS, PARTS, TYPICAL, loaded, names, part, thin, tokens

every_preset = pytest.mark.parametrize("preset", names("model"))
every_part = pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in PARTS for name in names(group)]
)


@cache
def composed(preset):
    return compose([f"model={preset}", "size=tiny"]).model


def sized(preset, size, **changes):
    return replace(composed(preset), **part("size", size) | changes)


def package(group, name):
    return (CONFIGS / group / f"{name}.yaml").read_text().partition("\n")[0]


@every_part
def test_a_part_sets_only_its_own_node(group, name):
    assert package(group, name) == f"# @package model.{group}"
    for base in loaded(group, name).get("defaults", []):
        assert base == "_self_" or base.endswith("@_here_"), "an inherited file sets another node"


@every_preset
def test_a_preset_chooses_parts_and_sets_none_of_their_options(preset):
    file = loaded("model", preset)
    assert package("model", preset) == "# @package _global_"
    assert set(file) <= {"defaults", "model"}
    assert not {*PARTS, "cross_attention"} & set(file["model"])
    inherited = loaded("model", "modern")["defaults"] if "modern" in file["defaults"] else []
    choices = [choice for choice in inherited + file["defaults"] if isinstance(choice, dict)]
    chosen = {group.removeprefix("override /") for choice in choices for group in choice}
    assert chosen - {"attention@model.cross_attention", "optimizer"} == set(PARTS)


def test_defaults_sizes_and_experiments_set_no_options_of_parts():
    files = [(".", "train"), *(("experiment", name) for name in names("experiment"))]
    for group, name in files:
        assert not {*PARTS} & {*loaded(group, name).get("model", {})}, name
    for size in names("size"):
        assert package("size", size) == "# @package model"
        assert set(part("size", size)) == {"d_model", "n_layers", "n_heads", "context_length"}


@pytest.mark.parametrize(
    ("preset", "choice", "name"),
    [
        ("bert", "attention", "mla"),
        ("gpt2", "position", "alibi"),
        ("bart", "attention@model.cross_attention", "gqa"),
    ],
)
def test_a_swap_on_the_command_line(preset, choice, name):
    swapped = compose([f"model={preset}", f"{choice}={name}", "size=tiny"]).model
    group, _, node = choice.partition("@model.")
    assert swapped == replace(composed(preset), **{node or group: part(group, name)})


@every_part
@pytest.mark.parametrize("preset", thin(names("model"), TYPICAL[::2]))
def test_any_part_in_any_preset(preset, group, name):
    """And every parameter is used."""
    config = replace(composed(preset), **{group: part(group, name)})
    if name == "mla" and "window" in (config.layers or []):
        with pytest.raises(ValueError, match=r"unknown setting model.attention \(mla\): sliding_w"):
            build_model(config, 23)
        return
    net = build_model(config, 23)
    text = tokens(2, 5)
    logits = net(tokens(2, 7), text) if net.kind == "encoder_decoder" else net(text)
    logits.sum().backward()
    assert logits.shape == (2, 5, 23)
    assert logits.isfinite().all()
    assert not [name for name, parameter in net.named_parameters() if parameter.grad is None]


@every_preset
def test_the_initial_loss_is_near_uniform(preset):
    net = build_model(sized(preset, "small", n_layers=4), 1000).eval()
    text = torch.arange(999).view(9, 111)
    logits = net(text, text) if net.kind == "encoder_decoder" else net(text)
    targets = text[:, torch.randperm(111, generator=torch.Generator().manual_seed(0))]
    loss = F.cross_entropy(logits.mT, targets).item()
    assert loss == pytest.approx(math.log(1000), abs=0.7)


LLAMA_7B = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "attention": part("attention", "mha_nobias"),
    "ffn": part("ffn", "swiglu", d_ff=11008, expansion=None),
}
BERT = {"context_length": 512}


@pytest.mark.parametrize(
    ("preset", "size", "changes", "vocab_size", "parameters"),
    [
        ("gpt2", "124m", {}, 50257, 124_439_808),
        ("gpt2", "350m", {}, 50257, 354_823_168),
        ("gpt2", "774m", {}, 50257, 774_030_080),
        ("gpt2", "1558m", {}, 50257, 1_557_611_200),
        ("llama", "124m", LLAMA_7B, 32000, 6_738_415_616),
        # bert-base-uncased with its masked-language-model head
        ("bert", "124m", BERT, 30522, 109_514_298),
        # roberta-base, without two position rows that transformers never reads and one token type
        ("roberta", "124m", BERT, 50265, 124_697_433 - 3 * 768),
        # t5-base and google/t5-v1_1-base
        ("t5", "124m", {}, 32128, 222_903_552),
        ("flan_t5", "124m", {}, 32128, 247_577_856),
        # bart-base, without two position rows that transformers never reads, in each stack
        ("bart", "124m", {"n_layers": 6}, 50265, 139_420_416 - 4 * 768),
    ],
)
def test_published_sizes(preset, size, changes, vocab_size, parameters):
    with torch.device("meta"):
        net = build_model(sized(preset, size, **changes), vocab_size)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize("size", names("size"))
@every_preset
def test_every_size_of_every_preset(preset, size):
    """One layer is enough to check the widths."""
    config = sized(preset, size, n_layers=1)
    if size == "1558m" and config.attention["kind"] == "gqa":
        with pytest.raises(ValueError, match=r"n_heads \(25\) must be a multiple of .* \(2\)"):
            build_model(config, 23)
        config = replace(config, attention=config.attention | {"queries_per_kv": 5})
    with torch.device("meta"):
        build_model(config, 23)
