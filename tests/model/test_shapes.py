"""Every tensor has the shape that its name promises: in all architectures, presets and steps."""

import re
from collections import defaultdict
from functools import partial

import pytest
import torch

from configs.compose import compose
from configs.schema import EncoderSizes
from model.attention import ATTENTIONS
from model.embedding import Embedding
from model.generate.decode import generate
from model.loss import loss
from model.mla import MultiHeadLatentAttention
from model.position import POSITIONS
from model.shapes import main, trace_tensors
from model.transformer import build_model
from tests.parts import ARCHITECTURES, alive, kind_options, names, part, tiny, tokens

HEADS = {"head_dim": 8, "v_head_dim": 9}
WIDTHS = HEADS | {"qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "kv_lora_rank": 22}

every_position = pytest.mark.parametrize("position", POSITIONS)
every_attention = pytest.mark.parametrize("attention", ATTENTIONS)


def config_of(kind, attention, position):
    """A config whose sizes all differ, so that no axis can be mistaken for another."""
    options = kind_options("attention", attention)
    options |= {width: n for width, n in WIDTHS.items() if width in options}
    changes = {"attention": options, "position": kind_options("position", position)}
    if kind == "encoder_decoder":
        changes["cross_attention"] = part("attention", "gqa", **HEADS)
        changes["encoder"] = EncoderSizes(72, 1, None)
    return tiny(kind, d_model=60, n_heads=6, **changes)


# the attribute in which a module keeps the size of an axis
AXIS_ATTRS = {
    "H": "n_heads",
    "G": "n_groups",
    "D": "head_dim",
    "E": "v_head_dim",
    "R": "rotary_dim",
    "P": "qk_nope_head_dim",
    "L": "kv_lora_rank",
    "F": "d_ff",
}


def axis_sizes(model, **given):
    """The sizes that each axis may have in this model; the input gives those of B, T, S and N."""
    sizes = defaultdict(set, {axis: set(values) for axis, values in given.items()})
    sizes["1"] = {1}
    sizes["V"] = {model.head.map.out_features}
    for module in model.modules():
        if isinstance(module, Embedding):
            sizes["C"].add(module.table.embedding_dim)
        for axis, attribute in AXIS_ATTRS.items():
            if attribute in vars(module):
                sizes[axis].add(vars(module)[attribute])
        if isinstance(module, MultiHeadLatentAttention):  # the absorbed form attends to the latents
            cached = module.kv_lora_rank + module.rotary_dim
            sizes["K"].add(cached)
            sizes["D"].add(cached)
            sizes["E"].add(module.kv_lora_rank)
            sizes["G"].add(1)
    sizes["W"] = {n * width for n in sizes["H"] | sizes["G"] for width in sizes["D"] | sizes["E"]}
    return sizes


def violations(records, sizes):
    """The tensors whose shape differs from their name's; within one call a letter has one size, but W,
    which is that of queries, keys or values."""
    sizes_in_call = defaultdict(dict)
    messages = []
    for record in records:
        own = sizes_in_call[record.call]
        holds = len(record.axes) == record.tensor.ndim
        for axis, size in zip(record.axes, record.tensor.shape, strict=False):
            if (axis, size) != ("B", 1):
                once = axis == "W" or own.setdefault(axis, size) == size
                holds &= size in sizes[axis] and once
        if not holds:
            messages.append(f"{record.place} {record.name} is {tuple(record.tensor.shape)}")
    return messages


def trace(net, action, *, T=(7, 9), S=(7, 9), B=2, N=()):
    with trace_tensors(net) as records:
        action()
    assert records
    assert violations(records, axis_sizes(net, T=T, S=S, B=[B], N=N)) == []
    return {record.name for record in records}


def forward(net):
    if net.kind == "encoder_decoder":
        visible = torch.arange(9) < torch.tensor([[9], [6]])
        return lambda: net(tokens(2, 9), tokens(2, 7), source_visible=visible)
    visible = torch.arange(7) >= torch.tensor([[0], [3]])
    return lambda: net(tokens(2, 7), visible=visible)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@every_position
@every_attention
def test_every_attention_and_position(attention, position, kind):
    net = alive(config_of(kind, attention, position))
    seen = trace(net, forward(net))
    shown = "q_BTW q_BHTD scores_BHTS weights_BHTS mixed_BHTE merged_BTW y_BTC h_BTF logits_BTV"
    assert seen >= {*shown.split()}


@every_position
@every_attention
def test_fewer_queries_than_keys(attention, position):
    """Five tokens after seven, so that S and T differ."""
    net = alive(config_of("decoder", attention, position))
    text = tokens(2, 12)
    visible = torch.arange(12) >= torch.tensor([[0], [3]])
    caches = net.new_caches(12)
    net.hidden(text[:, :7], visible=visible[:, :7], caches=caches)
    last = partial(net.hidden, text[:, 7:], visible=visible, caches=caches)
    seen = trace(net, last, T=[5], S=[5, 12])
    assert seen >= {"q_BHTD", "behind_B1TS", "allowed_B1TS", "scores_BHTS", "merged_BTW"}


@pytest.mark.parametrize("preset", names("model"))
def test_every_preset(preset, command):
    """The command, too, in 80 columns."""
    net = build_model(compose([f"model={preset}", "size=tiny"]).model, 23)
    trace(net, forward(net))
    walk = command(main, "--code", f"model={preset}").out
    masks = command(main, "--mask", "--length", "16", f"model={preset}").out
    assert max(map(len, (walk + masks).splitlines())) <= 80


def test_each_kind_of_layer_and_its_window(command):
    masks = command(main, "--mask", "--length", "90", "model=gemma3").out  # wider than a terminal
    assert "\nquery 9 " + 26 * "." + 64 * "#" + "\n" in masks
    walk = command(main, "model=gemma3").out
    assert "stack.blocks.0  x 5 layers" in walk and "x 1 layers" not in walk
    walk = command(main, "model=modernbert", "model.n_layers=4").out
    assert "stack.blocks.0\n" in walk, "only the first has no norm before its attention"


@pytest.mark.parametrize(
    "command, message",
    [
        ("data.document_mask=true", "does not change the shapes of a model; --documents 2,4 shows"),
        ("model=t5 --documents 2,4", "--documents is for a decoder"),
        ("--padding 1 --documents 2,4", "--documents is for a decoder without --padding"),
        ("--length 0", "--length is from 1 to 300"),
    ],
)
def test_what_cannot_be_shown_is_refused(command, message):
    with pytest.raises(ValueError, match=message):
        main(command.split())


@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_every_step_of_generation(attention):
    options = {"attention": part("attention", attention), "position": part("position", "rope")}
    net = alive(tiny(**options))
    steps = generate(net, [[1] * 5, [2] * 3], max_new_tokens=4)
    seen = trace(net, lambda: list(steps), T=[1, 5], S=[1, 5, 6, 7, 8])
    assert ("q_BHTK" in seen) == (attention == "mla"), "decoding uses the absorbed form"


def test_the_loss():
    net = alive(tiny())
    text = tokens(3, 16)
    summed = partial(loss, net.hidden(text), net.head, text)
    seen = trace(net, summed, T=[], S=[], N=[48])
    assert seen >= {"rows_NC", "logits_NV", "probs_NV", "grad_NC"}


def test_a_wrong_name_is_found(monkeypatch):
    """Heads and positions swapped."""
    net = alive(tiny())
    monkeypatch.setattr("model.attention.split", lambda packed, n: packed.unflatten(-1, (n, -1)))
    with trace_tensors(net) as records, pytest.raises(RuntimeError):
        net(tokens(2, 7))
    messages = violations(records, axis_sizes(net, B=[2], T=[7], S=[7]))
    assert any(re.match(r"attention.py.* q_BHTD is \(2, 7, 4, 8\)", text) for text in messages)
