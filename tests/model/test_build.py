"""Plain data becomes parts, and what cannot is said in a sentence."""

import math

import pytest
import torch

from configs.schema import EncoderSizes
from model import build_model
from tests.parts import alive, part, tiny, tokens


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"attention": {"kind": "mhaa"}},
            "model.attention.kind is 'mhaa'; choose one of: mha, gqa, mqa, mla",
        ),
        ({"norm": {"eps": 1e-5}}, "model.norm.kind is None; choose one of: layernorm, rmsnorm"),
        (
            {"attention": part("attention", "mla", sliding_window=4)},
            r"model.attention \(mla\) takes no option 'window'; its options are: q_lora_rank, kv_lora_rank",
        ),
        (
            {"attention": part("attention", "mha", queries_per_kv=2)},
            r"model.attention \(mha\) takes no option 'group'",
        ),
        (
            {"attention": part("attention", "gqa", queries_per_kv=3)},
            r"model.attention \(gqa\): n_heads \(4\) must be a",
        ),
        (
            {"attention": part("attention", "gqa", sliding_window="far")},
            "sliding_window is 'far'; expected a whole number or null",
        ),
        ({"attention": part("attention", "gqa", bias=2)}, "bias is 2; expected true or false"),
        (
            {"attention": part("attention", "gqa", sliding_window=True)},
            "sliding_window is True; expected a whole number",
        ),
        ({"norm": part("norm", "rmsnorm", eps=math.nan)}, "eps is nan; expected a finite number"),
        (
            {"norm": part("norm", "rmsnorm", eps=0.0)},
            r"model.norm \(rmsnorm\): eps must be above 0 and is 0.0",
        ),
        ({"block": part("block", "pre", final=True)}, "takes no option 'final'; its options are: none"),
        ({"ffn": part("ffn", "relu", activation="gelu")}, "takes no option 'activation'"),
        (
            {"head": {"tie_weights": True, "shared": True}},
            "model.head takes no option 'shared'; its options are: tied",
        ),
        ({"embedding": {"scaled": 1}}, "model.embedding: scaled is 1; expected true or false"),
        ({"kind": "decodr"}, "model.kind is 'decodr'; choose one of: decoder, encoder, encoder_decoder"),
        ({"d_model": 30}, r"d_model \(30\) must be a multiple of n_heads \(4\)"),
        ({"n_layers": 0}, "model.n_layers must be above 0 and is 0"),
        ({"context_length": -1}, "model.context_length must be above 0 and is -1"),
        ({"dropout": 1.0}, "model.dropout must be from 0 to below 1 and is 1.0"),
        ({"init": "random"}, "model.init is 'random'; choose one of: gpt2, bert, t5, vaswani, modern"),
        ({"cross_attention": part("attention", "mha")}, "a decoder has no memory to look at"),
        (
            {"encoder": EncoderSizes(None, 3, None)},
            "model.encoder sets sizes of an encoder_decoder's encoder",
        ),
        (
            {"embedding": {"type_vocab_size": 2}},
            "type_vocab_size tells an encoder's texts apart; model.kind is decoder",
        ),
        ({"d_model": 20, "position": part("position", "rope")}, "fraction .1.0. of 5 is 5"),
        ({"attention": {"kind": ["mha"]}}, "model.attention.kind is .'mha'.; choose one of: mha, gqa"),
        ({"attention": {"kind": {"a": 1}}}, "model.attention.kind is {'a': 1}; choose one of: mha, gqa"),
        (
            {"attention": part("attention", "mha", qk_norm=None)},
            "qk_norm is None; choose one of: none, head, full",
        ),
        (
            {"norm": part("norm", "rmsnorm", eps=0.0), "attention": part("attention", "mha_qknorm")},
            r"^model.norm \(rmsnorm\): eps must be above 0",
        ),
        (
            {"kind": "encoder", "embedding": {"type_vocab_size": -3}},
            "model.embedding: type_vocab_size must be at least 0 and is -3",
        ),
        (
            {"position": part("position", "rope"), "embedding": {"scaled": True}, "embedding_norm": True},
            "model.embedding.scale_by_sqrt_d is undone by model.embedding_norm",
        ),
        ({"head": {"mlm_transform": ""}}, "model.head: transform is ''; choose one of: relu"),
        ({"ffn": part("ffn", "swiglu", width=64)}, r"either expand \(2.6667\) or width \(64\) must be null"),
        ({"ffn": part("ffn", "swiglu", expansion=None)}, r"either expand \(None\) or width \(None\)"),
        (
            {"ffn": part("ffn", "swiglu", expansion=None, width=7)},
            r"width \(7\) must be a multiple of multiple_of \(32\)",
        ),
    ],
)
def test_errors(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_model(tiny(**changes), 23)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cross_attention": None}, "an encoder_decoder needs model.cross_attention"),
        (
            {"cross_attention": part("attention", "mla")},
            "'mla', which takes no memory; choose one of: mha, gqa, mqa",
        ),
        (
            {"cross_attention": part("attention", "mha", sliding_window=4)},
            "sliding_window is a distance within one text",
        ),
        ({"encoder": EncoderSizes(None, None, 0)}, "model.encoder.n_heads must be above 0 and is 0"),
        ({"encoder": EncoderSizes(None, -1, None)}, "model.encoder.n_layers must be above 0 and is -1"),
        (
            {"encoder": EncoderSizes(50, 1, 3)},
            r"model.encoder: .* d_model \(50\) must be a multiple of n_heads",
        ),
    ],
)
def test_errors_of_an_encoder_decoder(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_model(tiny("encoder_decoder", **changes), 23)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((0,), "vocab_size must be a whole number from 1 on and is 0"),
        ((2.5,), "vocab_size must be a whole number from 1 on and is 2.5"),
        ((23, "7"), "seed must be a whole number from 0 to below .* and is '7'"),
        ((23, -1), "seed must be a whole number from 0 to below .* and is -1"),
    ],
)
def test_errors_of_the_rest(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_model(tiny(), *given)


def test_scaled_embeddings_count_where_a_position_is_added_before_their_norm():
    build_model(tiny(embedding={"scaled": True}, embedding_norm=True), 23)


def test_a_memory_goes_where_it_is_looked_at():
    net = alive(tiny("encoder_decoder"))
    memory, sentence = net.encode(tokens(1, 6)), "a memory goes with a stack that has cross-attention"
    with pytest.raises(ValueError, match=sentence):
        net.decode(tokens(1, 4), None)
    with pytest.raises(ValueError, match=sentence):
        net.encoder(memory, memory=memory)


def test_whole_numbers_pass_for_any_number():
    build_model(tiny(attention=part("attention", "gqa", logit_softcap=30)), 23)


def test_the_encoder_has_sizes_of_its_own():
    net = alive(tiny("encoder_decoder", encoder=EncoderSizes(d_model=40, n_layers=3, n_heads=5)))
    assert (len(net.encoder.blocks), len(net.decoder.blocks)) == (3, 2)
    assert net.encoder.blocks[0].attention.n_heads == 5
    assert net.encode(tokens(1, 6)).shape == (1, 6, 40)
    assert net.decoder.blocks[0].cross.key.weight.shape == (32, 40)
    assert net(tokens(1, 6), tokens(1, 4)).shape == (1, 4, 23)


def test_source_and_target_share_a_table_of_one_width():
    shared = build_model(tiny("encoder_decoder", encoder=EncoderSizes(None, 1, None)), 23)
    assert shared.source_embedding is None
    assert sum(tuple(p.shape) == (23, 32) for p in shared.parameters()) == 2  # table and head
    apart = build_model(tiny("encoder_decoder"), 23)
    assert apart.source_embedding.table.weight.shape == (23, 40)


def test_tied_weights_stay_tied():
    net = build_model(tiny(head={"tie_weights": True}), 23)
    net = net.double()
    net.load_state_dict(net.state_dict())
    assert net.head.map.weight is net.embedding.table.weight
    assert len({p.data_ptr() for p in net.parameters()}) == len(list(net.parameters()))
    net.embedding.table.weight.data.zero_()
    assert (net(tokens(1, 3)) == 0).all()
    assert build_model(tiny(), 23).head.map.weight is not net.embedding.table.weight


def test_cross_attention_reads_its_memory_once():
    net = alive(tiny("encoder_decoder"))
    memory, calls = net.encode(tokens(1, 6)), []
    for block in net.decoder.blocks:
        block.cross.key.register_forward_hook(lambda *_: calls.append("key"))
        block.cross.value.register_forward_hook(lambda *_: calls.append("value"))
    caches = net.new_caches(8)
    for t in tokens(1, 5).split(1, 1):
        net.decode(t, memory, caches=caches)
    assert sorted(calls) == ["key", "key", "value", "value"]  # one of each per layer


def test_all_decoder_layers_look_at_one_memory():
    net = alive(tiny("encoder_decoder"))
    seen = []
    for block in net.decoder.blocks:
        block.cross.register_forward_hook(lambda module, given, _: seen.append(given[1]))
    net(tokens(1, 6), tokens(1, 4))
    assert len(seen) == 2 and seen[0] is seen[1]


def test_visible_tells_of_every_position():
    for visible in (torch.ones(1, 5, dtype=torch.bool), torch.ones(7, dtype=torch.bool), torch.ones(1, 7)):
        with pytest.raises(ValueError, match=r"a bool tensor of \(1, 7\), not torch.* of \("):
            alive(tiny())(tokens(1, 7), visible=visible)


def test_tokens_come_in_rows():
    with pytest.raises(ValueError, match=r"tokens must be \(B, T\), rows of ids, and are \(7,\)"):
        alive(tiny())(tokens(7))
