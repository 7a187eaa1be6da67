"""Gemma: Llama with scaled embeddings, and norms that multiply by 1 + weight. Gemma 2 and 3 have
windows, and norms around each sub-layer; Gemma 3 a rope for layers with a window, and another."""

from model.hub.families.llama import DECODER, GATED, own_scale, scale_of
from model.hub.families.positions import read_layers, write_layers, write_ropes
from model.hub.tensors import Table, columns

NORMS = """
model.norm                                    stack.final_norm
model.layers.*.input_layernorm                stack.blocks.*.attention_norm
model.layers.*.post_attention_layernorm       stack.blocks.*.ffn_norm
"""
MORE_NORMS = """
model.layers.*.post_attention_layernorm       stack.blocks.*.attention_added_norm
model.layers.*.pre_feedforward_layernorm      stack.blocks.*.ffn_norm
model.layers.*.post_feedforward_layernorm     stack.blocks.*.ffn_added_norm
model.layers.*.self_attn.q_norm               stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_norm               stack.blocks.*.attention.key_norm
"""


def norms(names: str) -> Table:
    return columns(names, lambda weight: weight + 1, lambda weight: weight - 1)


GEMMA = DECODER.derive(
    "gemma",
    "GemmaForCausalLM",
    spec={"embedding.scale_by_sqrt_d": True},
    keys={"use_bidirectional_attention": "prefix_lm"},
    values={"use_bidirectional_attention": {None: False, False: False}},
    rules=lambda spec, config: norms(NORMS),
)


GEMMA2 = GEMMA.derive(
    "gemma2",
    "Gemma2ForCausalLM",
    without="hidden_act",
    spec={"block.kind": "sandwich"},
    keys={
        "hidden_activation": "ffn.kind",
        "attn_logit_softcapping": "attention.logit_softcap",
        "final_logit_softcapping": "head.logit_softcap",
    },
    values={"hidden_activation": GATED},
    rules=lambda spec, config: norms(NORMS + MORE_NORMS),
    # query_pre_attn_scalar is a width of heads
    read=lambda config, spec: own_scale(spec, config.query_pre_attn_scalar**-0.5),
    write=lambda spec: {"query_pre_attn_scalar": round(scale_of(spec) ** -2)},
    read_position=read_layers,
    write_position=write_layers,
)
GEMMA3 = GEMMA2.derive(
    "gemma3_text",
    "Gemma3ForCausalLM",
    without="attn_logit_softcapping",  # which has no effect
    spec={"attention.qk_norm": "head"},
    write_position=write_ropes,
)
