"""Layers that differ, in training and in decoding. (That each has its own settings is compared with
transformers in hub/.)"""

from unittest.mock import Mock

import pytest
import torch

from model import stack
from model.attention import ATTENTIONS, MultiHeadAttention
from tests.model.generate.test_decode import HOT, PROMPTS, collect, generate, lively, uncached
from tests.model.generate.test_replay import graphs, replayed  # noqa: F401
from tests.parts import alive, part, refused, tiny, tokens

KINDS = {
    "full": {},
    "window": {"attention": {"sliding_window": 3}},
    "wide": {"attention": {"sliding_window": 12}},
    "nope": {"position": {"kind": "none"}},
    "alibi": {"position": {"kind": "alibi"}, "attention": {"head_dim": 6}},
    "far": {"position": {"rope_theta": 1e6}},
}
PATTERNS = [
    ["window", "full"],
    ["nope", "window", "wide"],
    ["wide"],
    ["alibi", "wide", "window"],
    ["far", "window"],
]
patterns = pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)


def settings(pattern, **changes):
    parts = {"attention": part("attention", "gqa"), "position": part("position", "rope")}
    return parts | {"n_layers": 3, "layers": pattern, "layer_kinds": KINDS} | changes


def net_of(pattern, kind="decoder", **changes):
    return alive(tiny(kind, **settings(pattern, **changes)))


@patterns
def test_decoding(pattern, replayed):
    """Rows of unequal length past the context of 16, also as a graph."""
    net = lively(**settings(pattern))
    options = {"max_new_tokens": 24, "sampling": HOT}
    assert collect(generate(net, PROMPTS, **options)) == uncached(net, PROMPTS, **options)
    replayed(net, PROMPTS, **options)


def test_a_window_bounds_what_is_read():
    net = net_of(["window", "full"])
    caches = net.new_caches(16)
    for chunk in tokens(1, 9).split([6, 1, 2], 1):
        net.hidden(chunk, caches=caches)
    new = torch.zeros(1, 2, 2, 8)
    read = [layer["attention"].append(new, new)[0] for layer in caches.layers]
    assert [keys.shape[-2] for keys in read] == [4, 9, 4]
    whole = caches.layers[1]["attention"].buffers[0]
    assert read[1].data_ptr() == whole.data_ptr(), "without a copy"
    with refused("the cache has room for 16 positions, not 17"):
        net.hidden(tokens(1, 8), caches=caches)


def test_masks_and_rotations_are_made_once_for_each_setting(monkeypatch):
    """A full layer needs no mask. They are made in order: so are gradients that they share."""
    net = net_of(["window", "full", "wide"], n_layers=6)
    masks = Mock(wraps=stack.make_mask)
    monkeypatch.setattr("model.stack.make_mask", masks)
    position = net.stack.position
    position.rotary = Mock(wraps=position.rotary)
    net(tokens(1, 5))
    assert [made.kwargs["sliding_window"] for made in masks.call_args_list] == [3, 12]
    position.rotary.assert_called_once()
    assert not net.stack.layer_positions


def test_a_kind_may_change_one_option_of_a_scaling():
    kinds = {"own": {"position": {"scaling": {"factor": 2.0}}}, "full": {}}
    position = part("position", "rope_linear")
    net = net_of(["full", "own"], position=position, layer_kinds=kinds)
    assert net.stack.position.scaling.factor == position["scaling"]["factor"]
    assert net.stack.layer_positions[0].scaling.factor == 2.0


def test_the_first_layer_may_have_no_rotary_channels(monkeypatch):
    class Still(MultiHeadAttention):
        def __init__(self, d_model, n_heads):
            super().__init__(d_model, n_heads)
            self.rotary_dim = 0

    monkeypatch.setitem(ATTENTIONS, "still", Still)
    kinds = {"full": {}, "still": {"attention": {"kind": "still"}, "position": {"kind": "none"}}}
    assert net_of(["still", "full"], layer_kinds=kinds).stack.position.width == 8


def test_what_is_added_to_the_embeddings_is_in_all_layers():
    with refused("with it, no kind in model.layers may have another posit"):
        net_of(["nope", "full"], position=part("position", "learned"))


ERRORS = [
    ("windw", "model.layers is .'windw'.; expected names of model.layer_kinds: full, window"),
    ({"ffnn": {}}, "model.layer_kinds.own.ffnn is no group of settings of one of: att"),
    ({"attention": {"windw": 3}}, "unknown setting model.attention .gqa.: windw; the"),
    ({"attention": {"sliding_window": 3}}, "replaces model.attention.sliding_window in these la"),
    ({"position": {"kind": "learned"}}, "LearnedPosition adds to the embeddings"),
    ({"cross_attention": {"sliding_window": 3}}, "setting model.cross_attention .*: sliding_windo"),
]


@pytest.mark.parametrize("own, message", ERRORS)
def test_errors(own, message):
    pattern = [own] if own == "windw" else ["own"]
    attention = part("attention", "gqa", sliding_window=5)
    with refused(message):
        net_of(pattern, "encoder_decoder", layer_kinds=KINDS | {"own": own}, attention=attention)
