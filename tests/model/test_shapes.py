"""Every tensor has the shape that its name promises, in every architecture and preset and at every step."""

import re
from functools import partial

import pytest
import torch

from configs.cli import run_command
from configs.compose import compose
from configs.schema import EncoderSizes
from model import LEGEND
from model.attention import ATTENTIONS
from model.generate.decode import generate
from model.loss import loss
from model.position import POSITIONS
from model.shapes import axes_of, main, trace_forward, trace_tensors
from model.transformer import build_model
from tests.model.shape_checks import axis_sizes, violations
from tests.parts import ARCHITECTURES, alive, kind_options, names, part, tiny, tokens

WIDTHS = {
    "head_dim": 8,
    "v_head_dim": 9,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 4,
    "kv_lora_rank": 22,
}


def config_of(kind, attention, position):
    """A config whose sizes all differ, so that no axis can be mistaken for another."""
    options = kind_options("attention", attention)
    options |= {width: n for width, n in WIDTHS.items() if width in options}
    changes = {"attention": options, "position": kind_options("position", position)}
    if kind == "encoder_decoder":
        cross = part("attention", "gqa", head_dim=8, v_head_dim=9)
        changes |= {"cross_attention": cross, "encoder": EncoderSizes(72, 1, None)}
    return tiny(kind, d_model=60, n_heads=6, **changes)


def trace(net, action, *, T, S, B=2, N=()):
    with trace_tensors(net) as records:
        action()
    assert records
    assert violations(records, axis_sizes(net, T=T, S=S, B=[B], N=N)) == []
    return {record.name for record in records}


def forward(net, kind):
    if kind == "encoder_decoder":
        visible = torch.arange(9)[None] < torch.tensor([[9], [6]])
        return lambda: net(tokens(2, 9), tokens(2, 7), source_visible=visible)
    visible = torch.arange(7)[None] >= torch.tensor([[0], [3]])
    return lambda: net(tokens(2, 7), visible=visible)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_and_position(attention, position, kind):
    net = alive(config_of(kind, attention, position))
    seen = trace(net, forward(net, kind), T=[7, 9], S=[7, 9])
    assert seen >= {
        "q_BHTD",
        "scores_BHTS",
        "weights_BHTS",
        "merged_BTW",
        "h_BTF",
        "logits_BTV",
        "x",
    }


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_fewer_queries_than_keys(attention, position, kind):
    """Five tokens after seven, so that S and T differ."""
    net = alive(config_of(kind, attention, position))
    caches, text = net.new_caches(12), tokens(2, 12)
    visible = torch.arange(12)[None] >= torch.tensor([[0], [3]])
    step = (
        net.hidden if kind == "decoder" else partial(net.decode, memory=net.encode(tokens(2, 11)))
    )
    step(text[:, :7], visible=visible[:, :7], caches=caches)
    seen = trace(
        net, lambda: step(text[:, 7:], visible=visible, caches=caches), T=[5], S=[5, 11, 12]
    )
    assert seen >= {"q_BHTD", "behind_B1TS", "allowed_B1TS", "scores_BHTS", "merged_BTW"}


@pytest.mark.parametrize("preset", names("model"))
def test_every_preset(preset):
    config = compose([f"model={preset}", "size=tiny"]).model
    net = build_model(config, 23)
    trace(net, forward(net, config.kind), T=[7, 9], S=[7, 9])


@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_every_step_of_generation(attention):
    net = alive(tiny(attention=part("attention", attention), position=part("position", "rope")))
    steps = generate(net, [[1] * 5, [2] * 3], max_new_tokens=4)
    trace(net, lambda: list(steps), T=[1, 5], S=[1, 5, 6, 7, 8])
    net = alive(tiny("encoder_decoder", attention=part("attention", attention)))
    steps = generate(net, [[1], [2]], sources=[[1] * 9, [2] * 6], max_new_tokens=3)
    trace(net, lambda: list(steps), T=[1, 9], S=[1, 2, 3, 9])


def test_the_loss():
    net = alive(tiny())
    hidden, targets = net.hidden(tokens(3, 16)), tokens(3, 16, seed=1)
    assert "logits_NV" in trace(net, lambda: loss(hidden, net.head, targets), T=[], S=[], N=[48])


def test_a_wrong_name_is_found(monkeypatch):
    """Heads and positions swapped; a letter with two sizes in one call; a missing axis."""
    net = alive(tiny())
    monkeypatch.setattr("model.attention.split", lambda packed, n: packed.unflatten(-1, (n, -1)))
    with trace_tensors(net) as records, pytest.raises(RuntimeError):
        net(tokens(2, 7))
    given = {"B": [2], "T": [7], "S": [7]}
    messages = violations(records, axis_sizes(net, **given))
    assert any(
        "attention.py" in message and "q_BHTD is (2, 7, 4, 8)" in message for message in messages
    )
    record = next(record for record in records if record.axes == "BTC")
    longer = record._replace(tensor=torch.empty(2, 9, 32))
    assert len(violations([record, longer], axis_sizes(net, **given | {"T": [7, 9]}))) == 1
    assert (
        len(violations([record._replace(tensor=torch.empty(2, 7))], axis_sizes(net, **given))) == 1
    )


def test_the_axes_in_a_name():
    assert (axes_of("q_BHTD"), axes_of("x"), axes_of("k_B1SR")) == ("BHTD", "BTC", "B1SR")
    assert (axes_of("ROWS"), axes_of("q"), axes_of("self"), axes_of("a_Bx")) == (None,) * 4


def test_a_trace_goes_from_tokens_to_logits():
    net = build_model(compose(["model=t5", "size=tiny"]).model, 23).double()
    steps = trace_forward(net, {"source": tokens(2, 9), "tokens": tokens(2, 6)})
    across = [s.name for s in steps if s.module == "decoder.blocks.0.cross"]
    scores = ["scores_BGJS", "scores_BHTS", "weights_BHTS"]
    assert across == ["q_BHTD", "k_BGSD", "v_BGSE", *scores, "y_BGJE", "y_BHTE", "merged_BTW"]
    assert (steps[0].name, steps[-1].name) == ("tokens_BT", "logits_BTV")
    weights = {s.module: tuple(s.tensor.shape) for s in steps if s.name == "weights_BHTS"}
    assert weights == {
        "encoder.blocks.0.attention": (2, 4, 9, 9),
        "decoder.blocks.0.attention": (2, 4, 6, 6),
        "decoder.blocks.0.cross": (2, 4, 6, 9),
    }
    stream = [s.code for s in steps if s.module == "decoder.blocks.0"]
    assert all(code.startswith("x = x + ") for code in stream) and len(stream) == 3


def test_the_command(capsys):
    assert run_command(main, ["model=llama", "attention=mla"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines() if ".py:" in line]
    assert lines[0][1] == "tokens_BT" and lines[-1][1] == "logits_BTV"
    latents = ["cached_B1SK", "(B,", "1,", "S,", "K)", "(2,", "1,", "6,", "72)"]
    assert latents in [line[1:10] for line in lines]
    assert f"V  97     {LEGEND['V']}\n" in out and out.endswith("\nHere G = H, J = T, W = C.\n")
    assert run_command(main, ["attention@model.cross_attention=mha"]) == 2
    assert capsys.readouterr().err.startswith("error: a decoder has no ")


@pytest.mark.parametrize(
    ("overrides", "sizes", "equal"),
    [
        ([], {"G": "4", "J": "6", "E": "16"}, "G = H, J = T, E = D, W = C"),
        (["model=t5"], {"G": "4", "J": "6, 9", "E": "16"}, "G = H, J = T, E = D, W = C"),
        (["attention=gqa", "model.attention.v_head_dim=8"], {"G": "2", "J": "12", "E": "8"}, None),
    ],
)
def test_the_legend_has_sizes_and_says_which_are_equal(overrides, sizes, equal, capsys):
    assert run_command(main, overrides) == 0
    _, _, legend = capsys.readouterr().out.partition("identical.\n")
    assert {
        axis: re.search(rf"^{axis}  (.*?)  ", legend, re.MULTILINE)[1] for axis in sizes
    } == sizes
    assert legend.partition("Here ")[2] == (f"{equal}.\n" if equal else "")


def drawn(capsys, *args):
    """The masks that --mask draws, side by side: by module, for each query the keys that it attends to."""
    assert run_command(main, ["--mask", *args]) == 0
    head, _, *rows = (re.split(" {2,}(?! )", line) for line in capsys.readouterr().out.splitlines())
    masks = {module: [] for module in head}
    for row in rows:
        for module, line in zip(head, row, strict=False):
            masks[module] += [re.sub(r"query \d ", "", line).replace(" ", "")] if line else []
    return masks


def test_masks(capsys):
    """One for each kind of attention in the model; padding attends to itself."""
    causal = ["#.....", "##....", "###...", "####..", "#####.", "######"]
    layer = "stack.blocks.0.attention"
    assert drawn(capsys, "model=gpt2") == {layer: causal}
    padded = ["#.....", ".#....", "..#...", "..##..", "..###.", "..####"]
    assert drawn(capsys, "attention=mla", "--padding", "2") == {layer: padded}
    window = ["#.....", "##....", ".##...", "..##..", "...##.", "....##"]
    assert drawn(capsys, "model.attention.sliding_window=2", "position=alibi") == {layer: window}
    assert drawn(capsys, "model=bert", "--padding=1") == {layer: ["#####."] * 5 + ["######"]}
    assert drawn(capsys, "model=bart", "--padding=3") == {
        "encoder.blocks.0.attention": ["######..."] * 6 + ["#######..", "######.#.", "######..#"],
        "decoder.blocks.0.attention": causal,
        "decoder.blocks.0.cross": ["######..."] * 6,
    }
    one = drawn(
        capsys, "model=bert", "--padding=1", "model.n_layers=1"
    )  # settings on both sides of a flag
    assert one == {layer: ["#####."] * 5 + ["######"]}
    assert (
        run_command(main, ["--padding", "6"]) == 2 and "invalid choice" in capsys.readouterr().err
    )
