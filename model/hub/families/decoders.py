"""Llama with changes: OLMo, Phi, SmolLM3, StableLM and StarCoder2."""

from typing import Any

from model.hub.families.llama import DECODER, NAMES
from model.hub.families.positions import SIZE, read_rope, split_layers, write_rope
from model.hub.family import Keys
from model.hub.spec import ACTIVATIONS, BASE, Spec, merge_layers
from model.hub.tensors import QKV, Table, packed

STABLELM = DECODER.derive(
    "stablelm",
    without="rms_norm_eps attention_bias head_dim block.kind",
    spec={"norm.kind": "layernorm", "norm.bias": True, "position.rotary_fraction": 0.25},
    keys={
        "layer_norm_eps": "norm.eps",
        "use_qkv_bias": "attention.bias",
        "use_parallel_residual": "block.kind",
    },
    values={"use_parallel_residual": {False: "pre", True: "parallel_shared"}},
)
STARCODER2 = DECODER.derive(
    "starcoder2",
    without="rms_norm_eps attention_bias head_dim",
    spec=BASE,
    keys={
        "norm_epsilon": "norm.eps",
        "sliding_window": SIZE,
        "use_bias": "attention.bias attention.o_bias ffn.bias",
        "residual_dropout": "dropout",
    },
    values={"hidden_act": ACTIVATIONS},
    names=DECODER.names.replace("up_proj", "c_fc").replace("down_proj", "c_proj"),
)
OLMO = DECODER.derive(
    "olmo",
    without="rms_norm_eps",
    spec={"norm.kind": "layernorm", "norm.weight": False, "norm.eps": 1e-5},
    keys={"clip_qkv": ""},
    values={"clip_qkv": {None: None}},  # few texts have values that are clipped
)
# the norms of OLMo 2 are on the outputs of sub-layers, and over all heads of queries and keys
OLMO2_NAMES = """
model.embed_tokens                            embedding.table
model.norm                                    stack.final_norm
lm_head                                       head.map
model.layers.*.self_attn.q_proj               stack.blocks.*.attention.query
model.layers.*.self_attn.k_proj               stack.blocks.*.attention.key
model.layers.*.self_attn.v_proj               stack.blocks.*.attention.value
model.layers.*.self_attn.q_norm               stack.blocks.*.attention.query_norm.norm
model.layers.*.self_attn.k_norm               stack.blocks.*.attention.key_norm.norm
model.layers.*.self_attn.o_proj               stack.blocks.*.attention.out
model.layers.*.post_attention_layernorm       stack.blocks.*.attention_norm
model.layers.*.mlp.gate_proj                  stack.blocks.*.ffn.gate
model.layers.*.mlp.up_proj                    stack.blocks.*.ffn.up
model.layers.*.mlp.down_proj                  stack.blocks.*.ffn.out
model.layers.*.post_feedforward_layernorm     stack.blocks.*.ffn_norm
"""
OLMO2 = DECODER.derive(
    "olmo2", spec={"block.kind": "olmo2", "attention.qk_norm": "full"}, names=OLMO2_NAMES
)
PHI_NAMES = """
model.embed_tokens                       embedding.table
model.final_layernorm                    stack.final_norm
lm_head                                  head.map
model.layers.*.input_layernorm           stack.blocks.*.attention_norm
model.layers.*.self_attn.q_proj          stack.blocks.*.attention.query
model.layers.*.self_attn.k_proj          stack.blocks.*.attention.key
model.layers.*.self_attn.v_proj          stack.blocks.*.attention.value
model.layers.*.self_attn.dense           stack.blocks.*.attention.out
model.layers.*.self_attn.q_layernorm     stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_layernorm     stack.blocks.*.attention.key_norm
model.layers.*.mlp.fc1                   stack.blocks.*.ffn.up
model.layers.*.mlp.fc2                   stack.blocks.*.ffn.out
"""
PHI = DECODER.derive(
    "phi",
    without="rms_norm_eps attention_bias head_dim",
    spec=BASE
    | {"block.kind": "parallel_shared", "head.bias": True, "position.rotary_fraction": 0.5},
    keys={
        "layer_norm_eps": "norm.eps",
        "qk_layernorm": "attention.qk_norm",
        "resid_pdrop": "dropout",
    },
    values={"hidden_act": ACTIVATIONS, "qk_layernorm": {False: "none", True: "head"}},
    names=PHI_NAMES,
)


def phi3_rules(spec: Spec, config: Any) -> Table:
    query = spec["n_heads"] * spec["attention.head_dim"]
    key = query // spec["attention.queries_per_kv"]
    return {
        "model.layers.*.self_attn.qkv_proj": packed(QKV, [query, key, key]),
        "model.layers.*.mlp.gate_up_proj": packed(("ffn.gate", "ffn.up")),
    }


PHI3 = DECODER.derive(
    "phi3",
    without="attention_bias",
    spec={"position.rotary_fraction": 1.0},
    keys={"sliding_window": SIZE},
    names=NAMES,
    rules=phi3_rules,
)


def read_smollm3(config: Any, spec: Spec) -> Spec:
    """Every fourth layer, or those whose flag is 0, have no position encoding."""
    rope = {"position.kind": "rope", **read_rope(config, spec)}
    flags = config.no_rope_layers[: spec["n_layers"]]
    return merge_layers([rope if flag else {"position.kind": "none"} for flag in flags])


def write_smollm3(spec: Spec) -> Keys:
    flags = [int(layer["position.kind"] == "rope") for layer in split_layers(spec)]
    rope = write_rope(spec) if any(flags) else {}
    return {"no_rope_layers": flags, **rope}


SMOLLM3 = DECODER.derive(
    "smollm3",
    without="position.kind",
    keys={"mlp_bias": "ffn.bias"},
    read_position=read_smollm3,
    write_position=write_smollm3,
)
