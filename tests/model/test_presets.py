"""Every preset: with any other part, at every size, and as large as published.

That a swap changes only its part is a property of the YAML files, so their text is checked; Hydra composes
each preset once, and one swap of each group.
"""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from configs.compose import compose
from configs.registry import signature
from model.attention import ATTENTIONS
from model.transformer import build_model
from tests.parts import CONFIGS, PARTS, loaded, names, part, tokens

every_preset = pytest.mark.parametrize("preset", names("model"))
every_part = pytest.mark.parametrize(
    ("group", "name"), [(group, n) for group in PARTS for n in names(group)]
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
        assert base == "_self_" or base.endswith("@_here_"), (
            "an inherited file goes into the same node"
        )


@every_preset
def test_a_preset_chooses_parts_and_sets_none_of_their_options(preset):
    file = loaded("model", preset)
    assert package("model", preset) == "# @package _global_" and set(file) <= {"defaults", "model"}
    assert not {*PARTS, "cross_attention"} & set(file["model"])
    inherited = ["modern", "_self_"] if preset.startswith("modern_") else []
    assert [name for name in file["defaults"] if isinstance(name, str)] == inherited
    choices = [*(loaded("model", "modern")["defaults"] if inherited else ()), *file["defaults"]]
    chosen = {
        group: name
        for choice in choices
        if isinstance(choice, dict)
        for group, name in choice.items()
    }
    assert {f"override /{group}" for group in PARTS} <= set(chosen)
    others = {"override /attention@model.cross_attention", "override /optimizer"}
    assert {group.removeprefix("override /") for group in set(chosen) - others} == set(PARTS)


def test_defaults_sizes_and_experiments_set_no_options_of_parts():
    for group, name in [(".", "train"), *(("experiment", name) for name in names("experiment"))]:
        assert not set(PARTS) & set(loaded(group, name).get("model", {})), name
    for size in names("size"):
        assert package("size", size) == "# @package model"
        assert set(part("size", size)) == {"d_model", "n_layers", "n_heads", "context_length"}


SWAPS = {
    "bert": ("attention", "mla"),
    "gpt2": ("position", "alibi"),
    "t5": ("norm", "layernorm"),
    "modern": ("ffn", "swiglu"),
    "llama": ("block", "parallel"),
    "bart": ("attention@model.cross_attention", "gqa"),
}


@pytest.mark.parametrize("preset", SWAPS)
def test_a_swap_on_the_command_line(preset):
    choice, name = SWAPS[preset]
    swapped = compose([f"model={preset}", f"{choice}={name}", "size=tiny"]).model
    group, _, node = choice.partition("@model.")
    assert swapped == replace(composed(preset), **{node or group: part(group, name)})


def run(net):
    text = tokens(2, 5)
    return net(tokens(2, 7, seed=1), text) if net.kind == "encoder_decoder" else net(text)


@every_part
@every_preset
def test_any_part_in_any_preset(preset, group, name):
    net = build_model(replace(composed(preset), **{group: part(group, name)}), 23)
    logits = run(net)
    logits.sum().backward()
    assert logits.shape == (2, 5, 23) and logits.isfinite().all()
    unused = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    assert not unused


@pytest.mark.parametrize("name", names("attention"))
def test_any_cross_attention(name):
    config = replace(composed("t5"), cross_attention=part("attention", name))
    kind = config.cross_attention["kind"]
    if "memory" in signature(ATTENTIONS[kind]):
        assert run(build_model(config, 23)).shape == (2, 5, 23)
        return
    with pytest.raises(
        ValueError, match=f"cross_attention.kind is '{kind}'.*one of: mha, gqa, mqa"
    ):
        build_model(config, 23)


@every_preset
def test_the_initial_loss_is_near_uniform(preset):
    net = build_model(sized(preset, "small", n_layers=4), 1000).eval()
    text = torch.arange(999).view(9, 111)
    logits = net(text, text[:, :-1]) if net.kind == "encoder_decoder" else net(text[:, :-1])
    targets = text[:, torch.randperm(111, generator=torch.Generator().manual_seed(0))][:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert abs(loss.item() - math.log(1000)) < 0.7


LLAMA_7B = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "attention": part("attention", "mha_nobias"),
}
LLAMA_7B["ffn"] = part("ffn", "swiglu", d_ff=11008, expansion=None)
PUBLISHED = [
    ("gpt2", "124m", {}, 50257, 124_439_808),
    ("gpt2", "350m", {}, 50257, 354_823_168),
    ("gpt2", "774m", {}, 50257, 774_030_080),
    ("gpt2", "1558m", {}, 50257, 1_557_611_200),
    ("llama", "124m", LLAMA_7B, 32000, 6_738_415_616),
    # bert-base-uncased with its masked-language-model head
    ("bert", "124m", {"context_length": 512}, 30522, 109_514_298),
    # roberta-base, without the two position rows that transformers never reads and its one token type
    ("roberta", "124m", {"context_length": 512}, 50265, 124_697_433 - 3 * 768),
    # t5-base and google/t5-v1_1-base
    ("t5", "124m", {}, 32128, 222_903_552),
    ("flan_t5", "124m", {}, 32128, 247_577_856),
    # bart-base, without the two position rows that transformers never reads, in each stack
    ("bart", "124m", {"n_layers": 6}, 50265, 139_420_416 - 4 * 768),
]


@pytest.mark.parametrize(("preset", "size", "changes", "vocab_size", "parameters"), PUBLISHED)
def test_published_sizes(preset, size, changes, vocab_size, parameters):
    with torch.device("meta"):
        net = build_model(sized(preset, size, **changes), vocab_size)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize("size", names("size"))
@every_preset
def test_every_size_of_every_preset(preset, size):
    """One layer is enough to check the widths."""
    config = sized(preset, size, n_layers=1)
    with torch.device("meta"):
        if (preset, size) == ("llama", "1558m"):
            with pytest.raises(ValueError, match=r"n_heads \(25\) must be a multiple of .* \(2\)"):
                build_model(config, 23)
            config = replace(config, attention=config.attention | {"queries_per_kv": 5})
        build_model(config, 23)
