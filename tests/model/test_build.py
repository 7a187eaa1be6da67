"""Building models: invalid configs are rejected, and stacks and embeddings are wired as configured."""

import math

import pytest
import torch

from configs.schema import EncoderSizes
from model.transformer import build_model
from tests.parts import alive, part, tiny, tokens


def swap(group, name, **changes):
    return {group: part(group, name, **changes)}


def attention(name="gqa", **changes):
    return swap("attention", name, **changes)


def ffn(**changes):
    return swap("ffn", "swiglu", **changes)


def rope(**changes):
    return swap("position", "rope", **changes)


def scaled_rope(name, **changes):
    return rope(scaling=part("position", f"rope_{name}")["scaling"] | changes)


PAIR = {"kind": "encoder_decoder"}
SCALED = {"embedding": {"scale_by_sqrt_d": True}, "embedding_norm": True}
ERRORS = [
    ({"kind": "decodr"}, "model.kind is 'decodr'; choose one of: decoder, encoder, encoder_"),
    (
        {"attention": {"kind": "mhaa"}},
        "model.attention.kind is 'mhaa'; choose one of: mha, gqa, mqa, mla",
    ),
    ({"attention": {"kind": ["mha"]}}, "model.attention.kind is .'mha'.; choose one of: mha, gqa"),
    (
        {"attention": {"kind": {"a": 1}}},
        "model.attention.kind is {'a': 1}; choose one of: mha, gqa",
    ),
    ({"norm": {"eps": 1e-5}}, "model.norm.kind is None; choose one of: layernorm, rmsnorm"),
    (
        attention("mla", sliding_window=4),
        r"model.attention \(mla\) has no option 'sliding_window'; its opt",
    ),
    (attention("mha", queries_per_kv=2), r"model.attention \(mha\) has no option 'queries_per_kv'"),
    (attention(queries_per_kv=3), r"model.attention \(gqa\): n_heads \(4\) must be a multiple of"),
    (
        attention(sliding_window="far"),
        "sliding_window is 'far'; expected an integer at least 1 or null",
    ),
    (attention(sliding_window=True), "sliding_window is True; expected an integer"),
    (attention(sliding_window=0), "sliding_window is 0; expected an integer at least 1 or null"),
    (attention(head_dim=0), "head_dim is 0; expected an integer at least 1"),
    (attention(logit_softcap=-1.0), "logit_softcap is -1.0; expected a number above 0 or null"),
    (attention(bias=2), "bias is 2; expected true or false"),
    (attention("mha", qk_norm=None), "qk_norm is None; expected one of: none, head, full"),
    (attention("mha", qk_norm="heads"), "qk_norm is 'heads'; expected one of: none, head, full"),
    (swap("norm", "rmsnorm", eps=math.nan), "eps is nan; expected a number above 0"),
    # not under the name of the attention, which uses the norm, too
    (
        swap("norm", "rmsnorm", eps=0.0) | attention("mha_qknorm"),
        r"^model.norm \(rmsnorm\): eps is 0.0",
    ),
    (swap("block", "pre", final=True), "has no option 'final'; its options are: none"),
    (ffn(activation="gelu"), "has no option 'activation'"),
    (ffn(gated=False), "has no option 'gated'"),
    (ffn(expansion=0.0), "expansion is 0.0; expected a number above 0 or null"),
    (ffn(d_ff=64), r"set either expansion \(2.6667\) or d_ff \(64\), and the other to null"),
    (ffn(expansion=None), r"set either expansion \(None\) or d_ff \(None\)"),
    (ffn(expansion=None, d_ff=7), r"d_ff \(7\) must be a multiple of multiple_of \(32\)"),
    ({"head": {"shared": True}}, "model.head has no option 'shared'; its options are: tie_weights"),
    ({"head": {"mlm_transform": ""}}, "model.head: mlm_transform is ''; expected one of: relu"),
    (
        {"embedding": {"scale_by_sqrt_d": 1}},
        "embedding: scale_by_sqrt_d is 1; expected true or false",
    ),
    ({"d_model": 30}, r"d_model \(30\) must be a multiple of n_heads \(4\)"),
    ({"n_layers": 0}, "model.n_layers is 0; expected an integer from 1"),
    ({"context_length": -1}, "model.context_length is -1; expected an integer from 1"),
    ({"dropout": 1.0}, "model.dropout is 1.0; expected a number at least 0 and below 1"),
    ({"init": "random"}, "model.init is 'random'; choose one of: gpt2, bert, t5, vaswani, modern"),
    ({"cross_attention": part("attention", "mha")}, "a decoder has no encoder output"),
    (
        {"kind": "encoder", "cross_attention": part("attention", "mha")},
        "an encoder has no encoder output",
    ),
    (
        {"encoder": EncoderSizes(None, 3, None)},
        "model.encoder sets the encoder of an encoder_decoder",
    ),
    (
        {"embedding": {"type_vocab_size": 2}},
        "type_vocab_size is for encoders; model.kind is decoder",
    ),
    (
        {"kind": "encoder", "embedding": {"type_vocab_size": -3}},
        "type_vocab_size is -3; expected an integer",
    ),
    (
        {"d_model": 20} | rope(),
        r"rotary_fraction \(1.0\) of 5 is 5 channels; rope needs an even number",
    ),
    (rope(rotary_fraction=0.4), r"rotary_fraction \(0.4\) of 8 is 3 channels"),
    (rope(rotary_fraction=0.1), r"rotary_fraction \(0.1\) of 8 is 0 channels"),
    (rope(rotary_fraction=1.5), "rotary_fraction is 1.5; expected a number"),
    (rope(rope_theta=1.0), "rope_theta is 1.0; expected a number above 1"),
    (scaled_rope("yarn", beta_slow=32.0), r"beta_slow \(32.0\) must be below beta_fast \(32.0\)"),
    (scaled_rope("yarn", factor=0.5), "factor is 0.5; expected a number at least 1"),
    (scaled_rope("linear", factor=-1.0), "factor is -1.0; expected a number at least 1"),
    (
        scaled_rope("linear", kind="ntk"),
        "scaling.kind is 'ntk'; choose one of: none, linear, llama3, yarn",
    ),
    (rope(scaling={"kind": "linear"}), r"scaling \(linear\) needs a value for factor"),
    (
        scaled_rope("llama3", low_freq_factor=4.0),
        r"low_freq_factor must be below high_freq_factor \(4.0\)",
    ),
    ({"d_model": 7, "n_heads": 1} | swap("position", "sinusoidal"), "an even d_model, not 7"),
    (swap("position", "sinusoidal", base=0.5), "base is 0.5; expected a number above 1"),
    (swap("position", "relative", num_buckets=2), "num_buckets is 2; expected an integer at"),
    (
        swap("position", "relative", num_buckets=5),
        r"num_buckets \(5\) must be even and < max_distance",
    ),
    (swap("position", "relative", max_distance=32), r"must be even and < max_distance \(32\)"),
    (SCALED | rope(), "model.embedding_norm undoes model.embedding.scale_by_sqrt_d"),
    (PAIR | {"cross_attention": None}, "an encoder_decoder needs cross-attention"),
    (PAIR | {"cross_attention": part("attention", "mla")}, "cross_attention.*'mla'.*mha, gqa, mqa"),
    (
        PAIR | {"cross_attention": part("attention", "mha", sliding_window=4)},
        "sliding_window does not apply",
    ),
    (
        PAIR | {"encoder": EncoderSizes(None, None, 0)},
        "model.encoder.n_heads is 0; expected an integer",
    ),
    (
        PAIR | {"encoder": EncoderSizes(None, -1, None)},
        "model.encoder.n_layers is -1; expected an integer",
    ),
    (
        PAIR | {"encoder": EncoderSizes(50, 1, 3)},
        r"model.encoder: .* d_model \(50\) must be a multiple of",
    ),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        build_model(tiny(**changes), 23)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "vocab_size is 0; expected an integer from 1"),
        ((2.5,), "vocab_size is 2.5; expected an integer from 1"),
        ((23, "7"), "seed is '7'; expected an integer from 0"),
        ((23, -1), "seed is -1; expected an integer from 0"),
    ],
)
def test_errors_of_the_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model(tiny(), *arguments)


def test_valid_configs_that_resemble_invalid_ones():
    build_model(
        tiny(**SCALED), 23
    )  # learned positions are added to the scaled embeddings, before the norm
    build_model(tiny(**attention(logit_softcap=30)), 23)  # an integer is a number


def test_a_memory_is_required_exactly_with_cross_attention():
    net = alive(tiny("encoder_decoder"))
    memory, message = (
        net.encode(tokens(1, 6)),
        "pass a memory if, and only if, the stack has cross-attention",
    )
    with pytest.raises(ValueError, match=message):
        net.decode(tokens(1, 4), None)
    with pytest.raises(ValueError, match=message):
        net.encoder(memory, memory=memory)


def test_the_encoder_can_have_other_sizes():
    net = alive(tiny("encoder_decoder", encoder=EncoderSizes(d_model=40, n_layers=3, n_heads=5)))
    assert (len(net.encoder.blocks), len(net.decoder.blocks)) == (3, 2)
    assert net.encoder.blocks[0].attention.n_heads == 5
    assert net.encode(tokens(1, 6)).shape == (1, 6, 40)
    assert net.decoder.blocks[0].cross.key.weight.shape == (32, 40)
    assert net(tokens(1, 6), tokens(1, 4)).shape == (1, 4, 23)


def test_source_and_target_share_an_embedding_of_the_same_width():
    shared = build_model(tiny("encoder_decoder", encoder=EncoderSizes(None, 1, None)), 23)
    assert shared.source_embedding is None
    assert sum(tuple(p.shape) == (23, 32) for p in shared.parameters()) == 2  # embedding and head
    separate = build_model(tiny("encoder_decoder"), 23)
    assert separate.source_embedding.table.weight.shape == (23, 40)


def test_tied_weights_stay_tied():
    net = build_model(tiny(head={"tie_weights": True}), 23)
    net = net.double()
    net.load_state_dict(net.state_dict())
    assert net.head.map.weight is net.embedding.table.weight
    assert len({p.data_ptr() for p in net.parameters()}) == len(list(net.parameters()))
    net.embedding.table.weight.data.zero_()
    assert (net(tokens(1, 3)) == 0).all()
    assert build_model(tiny(), 23).head.map.weight is not net.embedding.table.weight


def test_cross_attention_projects_its_memory_once():
    net = alive(tiny("encoder_decoder"))
    memory, calls = net.encode(tokens(1, 6)), []
    for block in net.decoder.blocks:
        block.cross.key.register_forward_hook(lambda *_: calls.append("key"))
        block.cross.value.register_forward_hook(lambda *_: calls.append("value"))
    caches = net.new_caches(8)
    for t in tokens(1, 5).split(1, 1):
        net.decode(t, memory, caches=caches)
    assert sorted(calls) == ["key", "key", "value", "value"]  # one of each per layer


def test_visible_must_cover_every_position():
    for visible in (
        torch.ones(1, 5, dtype=torch.bool),
        torch.ones(7, dtype=torch.bool),
        torch.ones(1, 7),
    ):
        with pytest.raises(
            ValueError, match=r"visible must be torch.bool of \(1, 7\), .* not torch.* of \("
        ):
            alive(tiny())(tokens(1, 7), visible=visible)


def test_tokens_must_be_two_dimensional():
    with pytest.raises(ValueError, match=r"tokens must be a tensor of \(B, T\), not \(7,\)"):
        alive(tiny())(tokens(7))
