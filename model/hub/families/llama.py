"""Llama, and what Mistral, Qwen and Gemma change in it."""

from typing import Any

from model.hub.families.positions import (
    FULL,
    SIZE,
    read_layers,
    read_rope,
    write_layers,
    write_rope,
    write_ropes,
)
from model.hub.family import KV_HEADS, SIZES, Family, Keys
from model.hub.spec import ACTIVATIONS, BASE, RMSNORM_NO_BIAS, Spec
from model.hub.tensors import Table, columns

GATES = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
GATED = {"gelu_pytorch_tanh": "geglu_tanh"}  # Gemma's name, which export writes
GATED |= {name: GATES[kind] for name, kind in ACTIVATIONS.items() if kind in GATES}

NAMES = """
model.embed_tokens                            embedding.table
model.norm                                    stack.final_norm
lm_head                                       head.map
model.layers.*.input_layernorm                stack.blocks.*.attention_norm
model.layers.*.self_attn.o_proj               stack.blocks.*.attention.out
model.layers.*.post_attention_layernorm       stack.blocks.*.ffn_norm
model.layers.*.mlp.down_proj                  stack.blocks.*.ffn.out
"""
# some classes have these in packed matrices
UNPACKED = """
model.layers.*.self_attn.q_proj               stack.blocks.*.attention.query
model.layers.*.self_attn.k_proj               stack.blocks.*.attention.key
model.layers.*.self_attn.v_proj               stack.blocks.*.attention.value
model.layers.*.self_attn.q_norm               stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_norm               stack.blocks.*.attention.key_norm
model.layers.*.mlp.gate_proj                  stack.blocks.*.ffn.gate
model.layers.*.mlp.up_proj                    stack.blocks.*.ffn.up
"""
# what Llama and its relatives have in common
DECODER = Family(
    model_type="",
    spec=BASE | RMSNORM_NO_BIAS | {"kind": "decoder", "position.kind": "rope"},
    keys={
        **SIZES,
        "intermediate_size": "ffn.d_ff",
        "hidden_act": "ffn.kind",
        "rms_norm_eps": "norm.eps",
        "num_key_value_heads": KV_HEADS,
        "head_dim": "attention.head_dim attention.v_head_dim",
        "attention_bias": "attention.bias attention.o_bias",
    },
    values={"hidden_act": GATED},
    names=NAMES + UNPACKED,
    read_position=read_rope,
    write_position=write_rope,
)
LLAMA = DECODER.derive("llama", keys={"mlp_bias": "ffn.bias"})
MISTRAL = DECODER.derive("mistral", without="attention_bias", keys={"sliding_window": SIZE})


def write_qwen(spec: Spec) -> Keys:
    """Some layers may have a window."""
    keys = write_layers(spec)
    keys["use_sliding_window"] = "sliding_window" in keys
    keys["max_window_layers"] = keys["layer_types"].count(FULL)
    return keys


QWEN3 = DECODER.derive(
    "qwen3",
    spec={"attention.qk_norm": "head"},
    read_position=read_layers,
    write_position=write_qwen,
)
QWEN2 = QWEN3.derive(
    "qwen2", without="attention_bias", spec={"attention.qk_norm": "none", "attention.bias": True}
)
# the norms of Gemma multiply by 1 + weight
GEMMA_NORMS = """
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
    "gemma", spec={"embedding.scale_by_sqrt_d": True}, rules=lambda spec, config: norms(GEMMA_NORMS)
)


def read_scale(config: Any, spec: Spec) -> Spec:
    """The scale of the scores: query_pre_attn_scalar is a head dimension; null is the usual one."""
    width = config.query_pre_attn_scalar
    return {"attention.scale": None if width == spec["attention.head_dim"] else width**-0.5}


def write_scale(spec: Spec) -> Keys:
    scale = spec.get("attention.scale") or spec["attention.head_dim"] ** -0.5
    return {"query_pre_attn_scalar": round(scale**-2)}


GEMMA2 = GEMMA.derive(
    "gemma2",
    without="hidden_act",
    spec={"block.kind": "sandwich"},
    keys={
        "hidden_activation": "ffn.kind",
        "attn_logit_softcapping": "attention.logit_softcap",
        "final_logit_softcapping": "head.logit_softcap",
    },
    values={"hidden_activation": GATED},
    rules=lambda spec, config: norms(GEMMA_NORMS + MORE_NORMS),
    read=read_scale,
    write=write_scale,
    read_position=read_layers,
    write_position=write_layers,
)
GEMMA3 = GEMMA2.derive(
    "gemma3_text",
    without="attn_logit_softcapping",  # which has no effect
    spec={"attention.qk_norm": "head"},
    write_position=write_ropes,
)
