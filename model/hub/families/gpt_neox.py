"""GPT-NeoX (Pythia): a parallel block with two norms, rope on a part of each head, and query, key
and value in one matrix."""

from model.hub.families.llama import DECODER
from model.hub.spec import ACTIVATIONS, Spec
from model.hub.tensors import QKV, TensorRule, packed

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


def packed_heads(spec: Spec) -> TensorRule:
    """The key and the value of a group follow the queries that share them."""
    n_queries, width = spec["attention.queries_per_kv"], spec["attention.head_dim"]
    return packed(QKV, [n_queries * width, width, width], spec["n_heads"] // n_queries)


NEOX = DECODER.derive(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    without="rms_norm_eps num_key_value_heads head_dim block.kind",
    spec={"norm.kind": "layernorm", "norm.bias": True, "ffn.bias": True}
    | {"position.rotary_fraction": 0.25},
    keys={
        "layer_norm_eps": "norm.eps",
        "use_parallel_residual": "block.kind",
        "hidden_dropout": "dropout",
    },
    values={
        "hidden_act": ACTIVATIONS,
        "use_parallel_residual": {True: "parallel", False: "pre"},
    },
    names=NAMES,
    rules=lambda spec, config: {"gpt_neox.layers.*.attention.query_key_value": packed_heads(spec)},
)
