"""Every attention with every position and in every block: causality, cache, padding, relative positions.

The kinds come from the registries, so a new kind is tested as soon as it is registered and has a YAML file.
"""

import pytest
import torch

import model.attend
from model.attention import ATTENTIONS, MultiHeadAttention
from model.block import BLOCKS
from model.position import POSITIONS
from tests.parts import ARCHITECTURES, PARTS, alive, kind_options, names, part, tiny, tokens

VARIANTS = {
    "sliding_window": {"sliding_window": 3},
    "logit_softcap": {"logit_softcap": 2.0},
    "widths": {"head_dim": 6, "v_head_dim": 10},
    "full_norm": {"qk_norm": "full"},
    "one_scale": {"scale": 1.0},
}
OTHER_FILES = [(g, name) for g in ("attention", "position") for name in names(g) if name not in PARTS[g]]
LENGTH, SOURCE = 7, 9

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_attention = pytest.mark.parametrize("attention", ATTENTIONS)


@every_architecture
@pytest.mark.parametrize("position", POSITIONS)
@every_attention
def test_attention_and_position(attention, position, architecture):
    check(config_of(architecture, attention=attention, position=position))


@every_architecture
@pytest.mark.parametrize("block", [block for block in BLOCKS if block != "pre"])
@every_attention
def test_attention_and_block(attention, block, architecture):
    check(config_of(architecture, attention=attention, block=block, position="rope"))


@every_architecture
@pytest.mark.parametrize("position", ["rope", "alibi"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_options_of_attention(variant, position, architecture):
    options = part("attention", "gqa", **VARIANTS[variant])
    check(tiny(architecture, attention=options, position=part("position", position)))


@pytest.mark.parametrize(("group", "name"), OTHER_FILES)
def test_other_yaml_files(group, name):
    check(tiny("encoder_decoder", **{group: part(group, name)}))


@every_architecture
@pytest.mark.parametrize("position", ["rope", "alibi"])
@every_attention
def test_the_fused_kernel(attention, position, architecture, monkeypatch):
    monkeypatch.setattr(model.attend, "prefer_math_kernel", lambda q, k, v: False)
    check(config_of(architecture, attention=attention, position=position))


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
@every_attention
def test_rope_sees_only_distances(attention, architecture):
    net = alive(config_of(architecture, attention=attention, position="rope"))
    assert change_by_shift(net) < 1e-10


class SplitAfterRotation(MultiHeadAttention):
    """Differential attention done wrong: each head is rotated as one and then split into two."""

    def __init__(self, d_model: int, n_heads: int):
        width = d_model // n_heads
        super().__init__(d_model, n_heads, head_dim=2 * width, v_head_dim=width)

    def attend(self, q_BHTD, k_BGSD, v_BGSE, mask):
        pairs = zip(q_BHTD.chunk(2, -1), k_BGSD.chunk(2, -1), strict=True)
        first, second = (super(SplitAfterRotation, self).attend(q, k, v_BGSE, mask) for q, k in pairs)
        return first - 0.5 * second


def test_only_the_shift_finds_a_head_split_after_its_rotation(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "differential", SplitAfterRotation)
    config = tiny(attention={"kind": "differential"}, position=part("position", "rope"))
    check(config)
    assert change_by_shift(alive(config)) > 1e-3


def config_of(architecture, **kinds):
    return tiny(architecture, **{group: kind_options(group, kind) for group, kind in kinds.items()})


@torch.no_grad()
def change_by_shift(net):
    """How much the output changes when all positions move by 100."""
    text, rotary = tokens(1, LENGTH), net.stack.position.rotary
    before = net.hidden(text)
    net.stack.position.rotary = lambda x, pos: rotary(x, pos + 100)
    return (net.hidden(text) - before).abs().max()


def check(config):
    net = alive(config)
    if config.kind == "encoder":
        sees_both_sides(net)
        padding_changes_nothing(net, net.hidden)
    elif config.kind == "decoder":
        sees_only_the_past(net.embedding, net.stack, config.attention.get("sliding_window"))
        cached_is_full(net.hidden, net.new_caches)
        rows_are_independent(net.hidden, net.new_caches)
    else:
        source = tokens(1, SOURCE, seed=5)
        memory = net.encode(source).detach()
        sees_only_the_past(
            net.embedding, lambda x: net.decoder(x, memory=memory), config.attention.get("sliding_window")
        )
        cached_is_full(lambda t, **rest: net.decode(t, memory, **rest), net.new_caches)
        rows_are_independent(
            lambda t, **rest: net.decode(t, memory.expand(len(t), -1, -1), **rest), net.new_caches
        )
        padding_changes_nothing(net, net.encode)
        padded_memory_changes_nothing(net)


def influence(embedding, stack):
    """(T, S): how strongly the output at t depends on the input at s."""
    x = embedding(tokens(1, LENGTH)).detach().requires_grad_()
    y = stack(x)[0]
    weights = torch.linspace(
        1, 2, y.shape[-1], dtype=y.dtype
    )  # a plain sum has no gradient through a layernorm
    return torch.stack(
        [torch.autograd.grad(row @ weights, x, retain_graph=True)[0][0].norm(dim=-1) for row in y]
    )


def sees_only_the_past(embedding, stack, sliding_window):
    dependence = influence(embedding, stack)
    assert (dependence.triu(1) == 0).all(), "a position depends on a later one"
    # two layers of a window see twice as far, less the position in both
    reach = LENGTH if sliding_window is None else 2 * sliding_window - 1
    seen = torch.ones_like(dependence).tril().triu(1 - reach).bool()
    assert (dependence[seen] > 0).all(), "a position does not depend on an earlier one"
    assert (dependence[~seen] == 0).all(), "a position depends on one outside its window"


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
def rows_are_independent(hidden, new_caches):
    """Rows of unequal length, padded on the left, in one batch and then continued with one cache."""
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
        torch.testing.assert_close(together[row, LENGTH - text.shape[1] :], alone[0], rtol=0, atol=1e-10)


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
