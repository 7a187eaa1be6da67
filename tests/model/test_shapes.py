"""Names cannot lie: what ends in a shape has that shape, in every topology and preset and at every step."""

import subprocess
import sys

import pytest
import torch

from model import LEGEND, build_model
from model.generate import generate
from model.loss import ROWS, loss
from model.shapes import Tracer, axis_sizes, broken, promised, walk
from tests.parts import ROOT, alive, names, part, tiny, tokens
from training.config import compose


def traced(net, action, *lengths):
    with Tracer(net) as tracer:
        action()
    assert tracer.sightings
    assert broken(tracer.sightings, axis_sizes(net, T=lengths, S=lengths)) == []
    return {s.name for s in tracer.sightings}


def forward(net, kind):
    if kind == "encoder_decoder":
        visible = torch.arange(9)[None] < torch.tensor([[9], [6]])
        return lambda: net(tokens(2, 9), tokens(2, 7), source_visible=visible)
    visible = torch.arange(7)[None] >= torch.tensor([[0], [3]])
    return lambda: net(tokens(2, 7), visible=visible)


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("position", names("position"))
@pytest.mark.parametrize("attention", names("attention"))
def test_every_attention_and_position(attention, position, kind):
    config = tiny(kind, attention=part("attention", attention), position=part("position", position))
    net = alive(config)
    seen = traced(net, forward(net, kind), 7, 9)
    assert seen >= {"q_BHTD", "scores_BHTS", "weights_BHTS", "merged_BTW", "h_BTF", "logits_BTV", "x"}


@pytest.mark.parametrize("preset", names("model"))
def test_every_preset(preset):
    config = compose([f"model={preset}", "size=tiny"]).model
    net = build_model(config, 23)
    traced(net, forward(net, config.kind), 7, 9)


@pytest.mark.parametrize("attention", ["gqa", "mla"])
def test_every_step_of_a_decoding(attention):
    net = alive(tiny(attention=part("attention", attention), position=part("position", "rope")))
    traced(net, lambda: list(generate(net, [[1] * 5, [2] * 3], max_new_tokens=4)), 1, 5, 6, 7, 8)


def test_every_step_of_an_answer():
    net, sources = alive(tiny("encoder_decoder")), [[1] * 9, [2] * 6]
    traced(net, lambda: list(generate(net, [[1], [2]], sources=sources, max_new_tokens=3)), 1, 2, 3, 9)


def test_the_loss():
    net = alive(tiny())
    hidden, targets = net.hidden(tokens(2 * ROWS // 16 + 2, 16)), tokens(2 * ROWS // 16 + 2, 16, seed=1)
    assert "logits_NV" in traced(net, lambda: loss(hidden, net.head, targets), 16)


def test_a_lie_is_found(monkeypatch):
    """Heads and positions swapped; and a letter that means two sizes within one call."""
    net = alive(tiny())
    monkeypatch.setattr("model.attention.split", lambda packed, n: packed.unflatten(-1, (n, -1)))
    with Tracer(net) as tracer, pytest.raises(RuntimeError):
        net(tokens(2, 7))
    lies = broken(tracer.sightings, axis_sizes(net, T=[7], S=[7]))
    assert any("attention.py" in lie and "q_BHTD is (2, 7, 4, 8)" in lie for lie in lies)
    sight = next(s for s in tracer.sightings if s.axes == "BTC")
    other = sight._replace(tensor=torch.empty(2, 9, 32))
    assert len(broken([sight, other], axis_sizes(net, T=[7, 9], S=[7, 9]))) == 1
    assert len(broken([sight._replace(tensor=torch.empty(2, 7))], axis_sizes(net, T=[7], S=[7]))) == 1


def test_what_a_name_promises():
    assert (promised("q_BHTD"), promised("x"), promised("k_B1SR")) == ("BHTD", "BTC", "B1SR")
    assert (promised("ROWS"), promised("q"), promised("self"), promised("a_Bx")) == (None,) * 4


def test_the_walk_goes_from_tokens_to_logits():
    net = build_model(compose(["model=t5", "size=tiny"]).model, 23).double()
    steps = walk(net, {"source": tokens(2, 9), "tokens": tokens(2, 6)})
    across = [s.name for s in steps if s.module == "decoder.blocks.0.cross"]
    assert across == [
        *("q_BHTD", "k_BGSD", "v_BGSE", "scores_BGJS", "scores_BHTS", "weights_BHTS"),
        *("y_BGJE", "y_BHTE", "merged_BTW"),
    ]
    assert (steps[0].name, steps[-1].name) == ("tokens_BT", "logits_BTV")
    weights = {s.module: s.shape for s in steps if s.name == "weights_BHTS"}
    assert weights == {
        "encoder.blocks.0.attention": (2, 4, 9, 9),
        "decoder.blocks.0.attention": (2, 4, 6, 6),
        "decoder.blocks.0.cross": (2, 4, 6, 9),
    }
    stream = [s.code for s in steps if s.module == "decoder.blocks.0"]
    assert all(code.startswith("x = x + ") for code in stream) and len(stream) == 3


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "model.shapes", *words], cwd=ROOT, capture_output=True, text=True
    )


def test_the_command():
    shown = command("model=llama", "attention=mla")
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines() if ".py:" in line]
    assert lines[0][1] == "tokens_BT" and lines[-1][1] == "logits_BTV"
    assert ["latents_B1SK", "(B,", "1,", "S,", "K)", "(2,", "1,", "6,", "72)"] in [
        line[1:10] for line in lines
    ]
    assert f"V  {LEGEND['V']}" in shown.stdout


def test_the_command_explains_a_wrong_word():
    for words in (["attention=mlaa"], ["model.attention.windw=3"], ["attention@model.cross_attention=mha"]):
        shown = command(*words)
        assert shown.returncode == 2
        assert shown.stderr.startswith("error: ") and len(shown.stderr.splitlines()) == 1
        assert not shown.stdout
