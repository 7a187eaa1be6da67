"""GPT-NeoX (Pythia): a parallel block with two norms, rope on a part of each head, and query, key
and value in one matrix."""

from configs.registry import BelowOne, NonNegative, Positive
from model.hub.families.llama import DECODER
from model.hub.families.rope import read_rope
from model.hub.family import Key
from model.hub.spec import ACTIVATIONS, Spec
from model.hub.tensors import QKV, TensorRule, packed

NAMES = """
gpt_neox.embed_in                               embedding.table
gpt_neox.final_layer_norm                       stack.final_norm
embed_out                                       head.map
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
    spec={"norm.kind": "layernorm", "norm.bias": True, "ffn.bias": True},
    keys={
        "rotary_emb_base": Key("position.rope_theta", Positive, 1e4),
        "rotary_pct": Key("position.rotary_fraction", NonNegative, 0.25),
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "use_parallel_residual": Key("block.kind", {True: "parallel", False: "pre"}, True),
        "hidden_dropout": Key("dropout", BelowOne, 0.0),
    },
    defaults={"attention_bias": True},
    ignored="hidden_dropout_prob rope_scaling rope_parameters",
    implied=lambda spec: {
        "rope_theta": spec["position.rope_theta"],  # which have names of their own
        "partial_rotary_factor": spec["position.rotary_fraction"],
    },
    names=NAMES,
    rules=lambda spec, hf_config: {
        "gpt_neox.layers.*.attention.query_key_value": packed_heads(spec)
    },
    read_position=lambda hf_config, spec: read_rope(
        hf_config
        | {
            "rope_theta": hf_config.get("rotary_emb_base"),
            "partial_rotary_factor": hf_config.get("rotary_pct"),
        },
        spec,
    ),
    prefix="gpt_neox.",
    aliases={"embed_out.weight": "gpt_neox.embed_in.weight"},
    optional=r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
)
