"""Every attention with every position and in every block, and every norm and feed-forward network:
causality, cache, padding, distances.

The kinds come from the registries: a new one is tested once it is registered and has a YAML file.
Those of a file of your own: pytest --parts my_parts.py -k mine
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch

from configs.parts import LOADED
from model.transformer import build_model
from tests.parts import VOCABULARY, alive, architectures, kind_options, kinds, part, tiny, tokens

VARIANTS = [
    {"sliding_window": 3},
    {"logit_softcap": 2.0},
    {"head_dim": 6, "v_head_dim": 10},
    {"qk_norm": "head"},
    {"qk_norm": "full"},
    {"scale": 1.0},
]
LENGTH, SOURCE, LONG = 7, 9, 150

assert_close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
every_architecture = pytest.mark.parametrize("architecture", architectures())
every_attention = pytest.mark.parametrize("attention", kinds("attention"))


def config_of(architecture, **kinds):
    """An attention of your own may have no channels to rotate."""
    nodes = {group: kind_options(group, kind) for group, kind in kinds.items()}
    config = tiny(architecture, bigrams=16, **nodes)
    if LOADED and kinds.get("position") == "rope":
        try:
            build_model(config, VOCABULARY)
        except ValueError as error:
            assert "(or position=none)" in str(error)
            config.position = part("position", "none")
    return config


@every_architecture
@pytest.mark.parametrize("position", kinds("position"))
@every_attention
def test_attention_and_position(attention, position, architecture):
    check(config_of(architecture, attention=attention, position=position))


@every_architecture
@pytest.mark.parametrize("block", kinds("block"))
@every_attention
def test_attention_and_block(attention, block, architecture):
    check(config_of(architecture, attention=attention, block=block, position="rope"))


@every_architecture
@pytest.mark.parametrize("kind", kinds("ffn"))
def test_feedforward(kind, architecture):
    check(config_of(architecture, ffn=kind))


@every_architecture
@pytest.mark.parametrize("kind", kinds("norm"))
def test_norm(kind, architecture):
    check(config_of(architecture, norm=kind))


@every_architecture
@pytest.mark.parametrize("position", ["rope", "alibi"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: next(iter(variant)))
def test_options_of_attention(variant, position, architecture):
    attention = part("attention", "gqa", **variant)
    check(tiny(architecture, attention=attention, position=part("position", position)))


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
@every_attention
def test_rope_sees_only_distances(attention, architecture):
    """The output is the same if all positions move by 100."""
    net = alive(config_of(architecture, attention=attention, position="rope"))
    text = tokens(1, LENGTH)
    rotary = net.stack.position.rotary
    before = net.hidden(text)
    net.stack.position.rotary = lambda x, pos: rotary(x, pos + 100)
    assert_close(net.hidden(text), before)


def check(config):
    stays_in_bfloat16(alive(config).bfloat16())
    net = alive(config)
    if hasattr(net, "generate"):  # in a way of its own, which may see what is ahead
        return
    window = config.attention.get("sliding_window")
    if net.kind == "encoder":
        reach = LENGTH if window is None else config.n_layers * (window // 2)
        depends_exactly_on(net.embedding, net.hidden, behind=reach, ahead=reach)
        padding_changes_nothing(net.hidden)
        return
    hidden = net.hidden
    if net.kind == "encoder_decoder":
        memory = net.encode(tokens(1, SOURCE, seed=5)).detach()

        def reads(source, visible=None):
            return net.hidden(source, tokens(1, LENGTH), source_visible=visible)

        def hidden(text, **options):
            return net.decode(text, memory.expand(len(text), -1, -1), **options)

        padding_changes_nothing(net.encode)
        padding_changes_nothing(reads)

    reach = LENGTH if window is None else config.n_layers * (window - 1)
    depends_exactly_on(net.embedding, hidden, behind=reach, ahead=0)
    cached_is_full(hidden, net.new_caches)
    rows_are_independent(hidden, net.new_caches)
    if LOADED and net.kind == "decoder":  # what differs in training, or is computed in chunks
        depends_exactly_on(net.embedding, net.train().hidden, behind=reach, ahead=0)
        net = alive(replace(config, context_length=LONG))
        cached_is_full(net.hidden, net.new_caches, [[1] * LONG, [5, LONG - 5]])


@torch.no_grad()
def stays_in_bfloat16(net):
    """As sample.py casts it."""
    sources = [tokens(1, SOURCE)] * (net.kind == "encoder_decoder")
    assert net(*sources, tokens(1, LENGTH)).dtype is torch.bfloat16


def depends_exactly_on(embedding, hidden, *, behind, ahead):
    """The gradient of output t by input s is nonzero exactly for t - behind <= s <= t + ahead; parts
    of your own may look at less."""
    x = embedding(tokens(1, LENGTH)).detach().requires_grad_()
    hook = embedding.register_forward_hook(lambda *_: x)
    y = hidden(tokens(1, LENGTH))[0]
    hook.remove()
    # the sum of a row has no gradient through a layernorm
    weights = torch.linspace(1, 2, y.shape[-1], dtype=y.dtype)
    grads = [torch.autograd.grad(row @ weights, x, retain_graph=True)[0] for row in y]
    expected = torch.ones(LENGTH, LENGTH, dtype=y.dtype).tril(ahead).triu(-behind)
    seen = torch.cat(grads).norm(dim=-1).sign()
    assert torch.equal(seen, expected) or (LOADED and (seen <= expected).all())


@torch.no_grad()
def cached_is_full(hidden, new_caches, ways=([1] * LENGTH, [3, 1, 2, 1], [LENGTH])):
    length = sum(ways[0])
    text = tokens(1, length)
    full = hidden(text)
    for chunks in ways:
        caches = new_caches(length)
        parts = [hidden(chunk, caches=caches) for chunk in text.split(chunks, 1)]
        assert_close(torch.cat(parts, 1), full)


@torch.no_grad()
def rows_are_independent(hidden, new_caches):
    """Rows of unequal length, padded on the left, in one batch, and continued with one cache."""
    end = LENGTH + 2
    text = tokens(3, end)
    padding = [0, 5, 2]
    visible = torch.arange(end) >= torch.tensor(padding)[:, None]
    caches = new_caches(end)
    outputs = []
    for start, stop in pairwise([0, LENGTH, LENGTH + 1, end]):
        outputs.append(hidden(text[:, start:stop], visible=visible[:, :stop], caches=caches))
    for output, row, n in zip(torch.cat(outputs, 1), text, padding, strict=True):
        assert_close(output[n:], hidden(row[None, n:])[0])


@torch.no_grad()
def padding_changes_nothing(encode):
    text = tokens(1, 5)
    visible = torch.arange(8)[None] < 5
    for seed in (3, 4):
        padded = encode(torch.cat([text, tokens(1, 3, seed=seed)], 1), visible=visible)
        expected = encode(text)
        assert_close(padded[:, : expected.shape[1]], expected)
