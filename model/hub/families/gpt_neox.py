"""Classes with query, key and value in one matrix, head by head. GPT-NeoX (Pythia): a parallel
block with two norms, and rope on a part of each head. Persimmon: queries and keys have layer
norms."""

from collections.abc import Callable

from model.hub.families.llama import DECODER
from model.hub.spec import ACTIVATIONS, BASE
from model.hub.tensors import QKV, packed

NAMES = """
gpt_neox.embed_in                               embedding.table
gpt_neox.final_layer_norm                       stack.final_norm
lm_head                                         head.map
gpt_neox.layers.*.input_layernorm               stack.blocks.*.attention_norm
gpt_neox.layers.*.post_attention_layernorm      stack.blocks.*.ffn_norm
gpt_neox.layers.*.attention.dense               stack.blocks.*.attention.out
gpt_neox.layers.*.mlp.dense_h_to_4h             stack.blocks.*.ffn.up
gpt_neox.layers.*.mlp.dense_4h_to_h             stack.blocks.*.ffn.out
"""


def by_head(name: str) -> Callable:
    """The rule of such a matrix."""
    return lambda spec, config: {name: packed(QKV, n_groups=spec["n_heads"])}


NEOX = DECODER.derive(
    "gpt_neox",
    without="rms_norm_eps num_key_value_heads head_dim block.kind",
    spec={"norm.kind": "layernorm", "norm.bias": True, "ffn.bias": True}
    | {"position.rotary_fraction": 0.25},
    keys={
        "layer_norm_eps": "norm.eps",
        "use_parallel_residual": "block.kind",
        "hidden_dropout": "dropout",
    },
    values={"hidden_act": ACTIVATIONS, "use_parallel_residual": {True: "parallel", False: "pre"}},
    names=NAMES,
    rules=by_head("gpt_neox.layers.*.attention.query_key_value"),
)
PERSIMMON_NAMES = """
model.embed_tokens                              embedding.table
model.final_layernorm                           stack.final_norm
lm_head                                         head.map
model.layers.*.input_layernorm                  stack.blocks.*.attention_norm
model.layers.*.post_attention_layernorm         stack.blocks.*.ffn_norm
model.layers.*.self_attn.q_layernorm            stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_layernorm            stack.blocks.*.attention.key_norm
model.layers.*.self_attn.dense                  stack.blocks.*.attention.out
model.layers.*.mlp.dense_h_to_4h                stack.blocks.*.ffn.up
model.layers.*.mlp.dense_4h_to_h                stack.blocks.*.ffn.out
"""
PERSIMMON = NEOX.derive(
    "persimmon",
    without="use_parallel_residual attention_bias",
    spec=BASE | {"position.rotary_fraction": 0.5},
    keys={"qk_layernorm": "attention.qk_norm"},
    values={"qk_layernorm": {False: "none", True: "head"}},
    names=PERSIMMON_NAMES,
    rules=by_head("model.layers.*.self_attn.query_key_value"),
)
