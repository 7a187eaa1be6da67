"""Every attention with every position in every block and architecture: what must hold for all of them."""

import pytest
import torch

import model.attend
from tests.parts import alive, names, part, tiny, tokens

VARIANTS = {
    "sliding_window": {"sliding_window": 3},
    "logit_softcap": {"logit_softcap": 2.0},
    "widths": {"head_dim": 6, "v_head_dim": 10},
    "full_norm": {"qk_norm": "full"},
    "one_scale": {"scale": 1.0},
}
TOPOLOGIES = ["decoder", "encoder", "encoder_decoder"]
LENGTH, SOURCE = 7, 9

grid = pytest.mark.parametrize("architecture", TOPOLOGIES)
grid_position = pytest.mark.parametrize("position", names("position"))


@grid
@pytest.mark.parametrize("block", names("block"))
@grid_position
@pytest.mark.parametrize("attention", names("attention"))
def test_every_kind(attention, position, block, architecture):
    parts = {"attention": part("attention", attention), "position": part("position", position)}
    check(tiny(architecture, **parts, block=part("block", block)))


@grid
@grid_position
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option(variant, position, architecture):
    attention = part("attention", "gqa", **VARIANTS[variant])
    check(tiny(architecture, attention=attention, position=part("position", position)))


@grid
@grid_position
@pytest.mark.parametrize("attention", ["mha", "gqa", "mla"])
def test_the_fused_kernel(attention, position, architecture, monkeypatch):
    monkeypatch.setattr(model.attend, "plain_is_faster", lambda q, k, v: False)
    check(tiny(architecture, attention=part("attention", attention), position=part("position", position)))


def check(config):
    net = alive(config)
    if config.kind == "encoder":
        sees_both_sides(net)
        padding_changes_nothing(net, net.hidden)
    elif config.kind == "decoder":
        sees_only_the_past(net.embedding, net.stack, config.attention.get("sliding_window"))
        cached_is_full(net.hidden, net.new_caches)
        rows_stand_alone(net.hidden, net.new_caches)
    else:
        source = tokens(1, SOURCE, seed=5)
        memory = net.encode(source).detach()
        sees_only_the_past(
            net.embedding, lambda x: net.decoder(x, memory=memory), config.attention.get("sliding_window")
        )
        cached_is_full(lambda t, **rest: net.decode(t, memory, **rest), net.new_caches)
        rows_stand_alone(
            lambda t, **rest: net.decode(t, memory.expand(len(t), -1, -1), **rest), net.new_caches
        )
        padding_changes_nothing(net, net.encode)
        padded_memory_changes_nothing(net)


def influence(embedding, stack):
    """(T, S): how strongly the output at t depends on the input at s."""
    x = embedding(tokens(1, LENGTH)).detach().requires_grad_()
    y = stack(x)[0]
    weights = torch.linspace(1, 2, y.shape[-1], dtype=y.dtype)  # a plain sum is blind behind a layernorm
    return torch.stack(
        [torch.autograd.grad(row @ weights, x, retain_graph=True)[0][0].norm(dim=-1) for row in y]
    )


def sees_only_the_past(embedding, stack, sliding_window):
    dependence = influence(embedding, stack)
    assert (dependence.triu(1) == 0).all(), "a position depends on a later one"
    # two layers of a window reach twice as far back, less the position they share
    reach = LENGTH if sliding_window is None else 2 * sliding_window - 1
    seen = torch.ones_like(dependence).tril().triu(1 - reach).bool()
    assert (dependence[seen] > 0).all(), "a position is blind to an earlier one"
    assert (dependence[~seen] == 0).all(), "a position sees beyond its window"


def sees_both_sides(net):
    sliding_window = net.stack.sliding_window
    reach = LENGTH if sliding_window is None else 2 * (sliding_window // 2)
    dependence = influence(net.embedding, net.stack)
    seen = torch.ones_like(dependence).triu(-reach).tril(reach).bool()
    assert (dependence[seen] > 0).all()
    assert (dependence[~seen] == 0).all()


@torch.no_grad()
def cached_is_full(hidden, new_caches):
    text = tokens(1, LENGTH)
    full = hidden(text)
    for chunks in ([1] * LENGTH, [3, 1, 2, 1], [LENGTH]):
        caches, parts, start = new_caches(LENGTH), [], 0
        for size in chunks:
            parts.append(hidden(text[:, start : start + size], caches=caches))
            start += size
        torch.testing.assert_close(torch.cat(parts, 1), full, rtol=0, atol=1e-10)


@torch.no_grad()
def rows_stand_alone(hidden, new_caches):
    """Rows of unequal length, padded on the left, read in one batch and continued through one cache."""
    texts = [tokens(1, length, seed=length) for length in (LENGTH, 2, 5)]
    caches, outputs = new_caches(LENGTH + 2), []
    padded = torch.cat([torch.cat([tokens(1, LENGTH - t.shape[1], seed=9), t], 1) for t in texts])
    visible = torch.stack([torch.arange(LENGTH) >= LENGTH - t.shape[1] for t in texts])
    outputs.append(hidden(padded, visible=visible, caches=caches))
    more = tokens(3, 2, seed=8)
    for i in range(2):
        visible = torch.cat([visible, torch.ones(3, 1, dtype=torch.bool)], 1)
        outputs.append(hidden(more[:, i : i + 1], visible=visible, caches=caches))
    together = torch.cat(outputs, 1)
    for row, text in enumerate(texts):
        alone = hidden(torch.cat([text, more[row : row + 1]], 1))
        own = together[row, LENGTH - text.shape[1] :]
        torch.testing.assert_close(own, alone[0], rtol=0, atol=1e-10)


@torch.no_grad()
def padding_changes_nothing(net, encode):
    text = tokens(1, 5)
    alone = encode(text)
    visible = torch.arange(8)[None] < 5
    for padding in (tokens(1, 3, seed=3), tokens(1, 3, seed=4)):
        padded = encode(torch.cat([text, padding], 1), visible=visible)
        torch.testing.assert_close(padded[:, :5], alone, rtol=0, atol=1e-10)


@torch.no_grad()
def padded_memory_changes_nothing(net):
    text, source = tokens(1, LENGTH), tokens(1, 5, seed=6)
    alone = net.hidden(source, text)
    longer = torch.cat([source, tokens(1, 3, seed=7)], 1)
    padded = net.hidden(longer, text, source_visible=torch.arange(8)[None] < 5)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-10)
