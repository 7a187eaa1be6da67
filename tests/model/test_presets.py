"""Every preset through Hydra itself: with every part swapped in, at every size, and as large as published."""

import math
from functools import cache

import pytest
import torch

from configs.compose import compose
from configs.registry import signature
from model import build_model
from model.attention import ATTENTIONS
from tests.parts import names, part, tokens

PARTS = ["attention", "position", "norm", "ffn", "block"]


def built(*words, vocabulary=23):
    return build_model(compose(words).model, vocabulary)


@cache
def unchanged(preset):
    return compose([f"model={preset}", "size=tiny"]).model


def run(net, kind):
    text = tokens(2, 5)
    return net(tokens(2, 7, seed=1), text) if kind == "encoder_decoder" else net(text)


@pytest.mark.parametrize("swap", [f"{group}={name}" for group in PARTS for name in names(group)])
@pytest.mark.parametrize("preset", names("model"))
def test_any_part_after_any_preset(preset, swap):
    config = compose([f"model={preset}", swap, "size=tiny"]).model
    plain = unchanged(preset)
    changed = {part for part in vars(config) if getattr(config, part) != getattr(plain, part)}
    assert changed <= {swap.split("=")[0]}, "a swap changed more than its part"
    net = build_model(config, 23)
    logits = run(net, config.kind)
    logits.sum().backward()
    assert logits.shape == (2, 5, 23) and logits.isfinite().all()
    for parameter, p in net.named_parameters():
        assert p.grad is not None, f"{parameter} takes no part"


@pytest.mark.parametrize("name", names("attention"))
def test_any_cross_attention(name):
    words = ("model=t5", f"attention@model.cross_attention={name}", "size=tiny")
    kind = part("attention", name)["kind"]
    if "memory" not in signature(ATTENTIONS[kind]):
        with pytest.raises(
            ValueError, match=f"'{kind}', which takes no memory; choose one of: mha, gqa, mqa"
        ):
            built(*words)
        return
    assert run(built(*words), "encoder_decoder").shape == (2, 5, 23)


def test_cross_attention_is_untouched_by_a_swap_of_attention():
    config = compose(["model=t5", "attention=mla"]).model
    assert (config.attention["kind"], config.cross_attention["scale"]) == ("mla", 1.0)


def test_cross_attention_is_refused_where_there_is_nothing_to_cross():
    with pytest.raises(ValueError, match="a decoder has no memory to look at"):
        built("model=gpt2", "attention@model.cross_attention=mha", "size=tiny")


@pytest.mark.parametrize("preset", names("model"))
def test_the_first_guess_is_near_an_even_one(preset):
    config = compose([f"model={preset}", "size=small", "model.n_layers=4"]).model
    net, text = build_model(config, 1000).eval(), torch.arange(999).view(9, 111)
    logits = net(text, text[:, :-1]) if config.kind == "encoder_decoder" else net(text[:, :-1])
    targets = text[:, torch.randperm(111, generator=torch.Generator().manual_seed(0))][:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert abs(loss.item() - math.log(1000)) < 0.7


PUBLISHED = {
    ("model=gpt2", "size=124m"): (50257, 124_439_808),
    ("model=gpt2", "size=350m"): (50257, 354_823_168),
    ("model=gpt2", "size=774m"): (50257, 774_030_080),
    ("model=gpt2", "size=1558m"): (50257, 1_557_611_200),
    # Llama 7B
    (
        "model=llama",
        "attention=mha_nobias",
        "model.d_model=4096",
        "model.n_layers=32",
        "model.n_heads=32",
        "model.ffn.d_ff=11008",
        "model.ffn.expansion=null",
    ): (32000, 6_738_415_616),
    # bert-base-uncased with its masked-word head
    ("model=bert", "size=124m", "model.context_length=512"): (30522, 109_514_298),
    # roberta-base, less the two rows of positions that its library never reads and its one token type
    ("model=roberta", "size=124m", "model.context_length=512"): (50265, 124_697_433 - 3 * 768),
    # t5-base and google/t5-v1_1-base
    ("model=t5", "size=124m"): (32128, 222_903_552),
    ("model=flan_t5", "size=124m"): (32128, 247_577_856),
    # bart-base, less the two rows of positions that its library never reads, in each stack
    ("model=bart", "size=124m", "model.n_layers=6"): (50265, 139_420_416 - 4 * 768),
}


@pytest.mark.parametrize(("words", "published"), PUBLISHED.items(), ids=lambda x: str(x[0]))
def test_published_sizes(words, published):
    vocabulary, parameters = published
    with torch.device("meta"):
        net = built(*words, vocabulary=vocabulary)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize("size", names("size"))
@pytest.mark.parametrize("preset", names("model"))
def test_every_size_of_every_preset(preset, size):
    """One layer tells whether the widths go together."""
    words = [f"model={preset}", f"size={size}", "model.n_layers=1"]
    if (preset, size) == ("llama", "1558m"):
        with pytest.raises(ValueError, match=r"n_heads \(25\) must be a multiple of group \(2\)"):
            built(*words)
        words.append("model.attention.queries_per_kv=5")
    with torch.device("meta"):
        built(*words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["attention=mlaa"],
            r"there is no attention=mlaa \(did you mean mla\?\); choose one of: gqa, mha, .* mqa$",
        ),
        (["model.n_layer=3"], r"there is no model.n_layer \(did you mean model.n_layers\?\)"),
        (["+model.n_layer=3"], r"there is no model.n_layer \(did you mean model.n_layers\?\)"),
        (["model.n_layers=many"], "model.n_layers is 'many'; expected a whole number"),
        (["~model.n_layers"], "model.n_layers has no value: it cannot be left out"),
        (["~attention"], "~attention takes out what a run needs; attention=... chooses another"),
        (["model=t5", "model.attention.windw=3"], r"\(did you mean model.attention.sliding_window\?\)"),
        (["attn=gqa"], r"there is no attn \(did you mean attention\?\)"),
        (["llama"], "'llama' is not understood; write group=kind or key=value"),
        (["model=llama attention=mla"], "is not understood; write .*, each a word of its own"),
        (["model.dropout=null"], "model.dropout is None; expected a finite number"),
    ],
)
def test_words_that_mean_nothing(words, sentence):
    with pytest.raises(ValueError, match=sentence) as failure:
        built(*words)
    assert "\n" not in str(failure.value)
