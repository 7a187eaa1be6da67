"""Every preset: with any other part, at every size, and as large as published.

That a swap changes only its part is a property of the YAML files, so their text is checked; Hydra
composes each preset twice.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch

from configs.compose import compose
from model.transformer import build_model
from tests.parts import PARTS, names, part, refused


@cache
def composed(preset):
    return compose([f"model={preset}", "size=tiny"]).model


def sized(preset, size, **changes):
    return replace(composed(preset), **part("size", size) | changes)


@pytest.mark.parametrize("i, preset", [*enumerate(names("model"))])
def test_a_swap_changes_only_its_part(i, preset):
    """A part of each group at once; all presets together try them all."""
    net = composed(preset)
    parts = {group: names(group)[i % len(names(group))] for group in PARTS}
    swaps = [f"{group}={name}" for group, name in parts.items()]
    expected = {group: part(group, name) for group, name in parts.items()}
    if net.cross_attention:
        swaps.append("attention@model.cross_attention=gqa")
        expected["cross_attention"] = part("attention", "gqa")
    swapped = compose([f"model={preset}", *swaps, "size=tiny"]).model
    assert swapped == replace(net, **expected)


LLAMA_7B = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "attention": part("attention", "mha_nobias"),
    "ffn": part("ffn", "swiglu", d_ff=11008, expansion=None),
}
BERT = {"context_length": 512}


@pytest.mark.parametrize(
    "preset, size, changes, vocab_size, parameters",
    [
        ("gpt2", "124m", {}, 50257, 124_439_808),
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
@pytest.mark.parametrize("preset", names("model"))
def test_every_size_of_every_preset(preset, size):
    """One layer is enough to check the widths."""
    config = sized(preset, size, n_layers=1)
    if size == "1558m" and config.attention["kind"] == "gqa":
        with refused(r"n_heads \(25\) must be a multiple of .* \(2\)"):
            build_model(config, 23)
        config = replace(config, attention=config.attention | {"queries_per_kv": 5})
    with torch.device("meta"):
        build_model(config, 23)
