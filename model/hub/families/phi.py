"""Phi: one norm for attention and feed-forward, rope on a part of each head, a bias in the head."""

from model.hub.families.llama import DECODER
from model.hub.spec import ACTIVATIONS, BASE

NAMES = """
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
    "PhiForCausalLM",
    without="rms_norm_eps attention_bias head_dim",
    spec=BASE
    | {"block.kind": "parallel_shared", "head.bias": True, "position.rotary_fraction": 0.5},
    keys={
        "layer_norm_eps": "norm.eps",
        "qk_layernorm": "attention.qk_norm",
        "resid_pdrop": "dropout",
    },
    values={"hidden_act": ACTIVATIONS, "qk_layernorm": {False: "none", True: "head"}},
    names=NAMES,
)
