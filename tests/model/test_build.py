"""Building models: invalid configs are rejected; stacks and embeddings are wired as configured."""

import pytest

from model.transformer import build_model
from tests.parts import alive, part, refused, tiny, tokens


def swap(group, name, **changes):
    return {group: part(group, name, **changes)}


def scaled(name, **changes):
    return swap("position", name, scaling=part("position", name)["scaling"] | changes)


CROSS = {"kind": "encoder_decoder", "cross_attention": None}
MHA = part("attention", "mha")

ERRORS = [
    ({"kind": "decodr"}, "model.kind is 'decodr'; choose one of: decoder, encoder, encoder_"),
    ({"init": "random"}, "model.init is 'random'; choose one of: gpt2, bert, t5, vaswani, modern"),
    ({"cross_attention": MHA}, "cross_attention is for an encoder_decoder; model.kind is decoder"),
    (CROSS, "an encoder_decoder needs attention@model.cross_attention, such as mha"),
    ({"attention": MHA | {"kdim": 1}}, r"unknown setting model.attention \(mha\): kdim"),
    (
        CROSS | {"cross_attention": MHA | {"kdim": 41}},
        "kdim is 41, vdim None; .* memory are .40, 40",
    ),
    (CROSS | {"cross_attention": {"kind": "mla"}}, "cross_attention.*'mla'.*mha, gqa, mqa"),
    # one part
    ({"attention": {"kind": "mhaa"}}, "model.attention.kind is 'mhaa'; choose one of: mha, gqa, m"),
    (swap("attention", "gqa", queries_per_kv=3), r"attention \(gqa\): n_heads \(4\) must be a m"),
    (swap("attention", "gqa", qk_norm="heads"), "qk_norm is 'heads'; expected none or head"),
    (swap("ffn", "swiglu", d_ff=64), r"set expansion \(2.6667\) or d_ff \(64\), the other to null"),
    (swap("ffn", "moe", top_k=9), r"model.ffn .moe.: top_k \(9\) must be at most n_experts \(8\)"),
    (swap("ffn", "moe", expert={"kind": "moe"}), "expert.kind is 'moe'; choose one of: relu, rel"),
    (swap("position", "rope", rotary_fraction=0.4), r"\(0.4\) of 8 is 3 channels; r"),
    (swap("position", "rope", scaling={"kind": "linear"}), r"\(linear\): factor is missing"),
    (scaled("rope_llama3", low_freq_factor=4.0), "low_freq_factor must be below high_freq_factor"),
    (swap("position", "sinusoidal") | {"d_model": 7, "n_heads": 1}, "an even d_model, not 7"),
    (swap("position", "relative", num_buckets=5), r"num_buckets \(5\) must be even and < 2 max_di"),
]


@pytest.mark.parametrize("changes, message", ERRORS)
def test_errors(changes, message):
    with refused(message):
        build_model(tiny(**changes), 23)


def test_cross_attention_projects_its_memory_once():
    net = alive(tiny("encoder_decoder"))
    memory = net.encode(tokens(1, 6))
    calls = []
    for block in net.decoder.blocks:
        for linear in (block.cross.key, block.cross.value):
            linear.register_forward_hook(lambda module, *_: calls.append(module))
    caches = net.new_caches(8)
    for token in tokens(1, 5).split(1, 1):
        net.decode(token, memory, caches=caches)
    assert len(calls) == len({*calls}) == 4  # two of each layer


def test_errors_of_inputs():
    with refused(r"tokens must be a tensor of \(B, T\), not \(7,\)"):
        alive(tiny())(tokens(7))
    with refused("types need model.embedding.type_vocab_size above 0"):
        alive(tiny("encoder"))(tokens(1, 7), types=tokens(1, 7))


def test_a_setting_of_an_older_run_that_is_null_and_gone():
    attention = part("attention", "gqa", sinks=None)
    kinds = {"window": {"attention": {"sliding_window": 3, "sinks": None}}}
    net = build_model(tiny(attention=attention, layers=["window"], layer_kinds=kinds), 23)
    assert net.stack.blocks[0].attention.sliding_window == 3
