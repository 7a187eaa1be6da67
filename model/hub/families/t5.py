"""T5 1.0 and 1.1 (Flan): relative position bias, unscaled scores, and a head both tied and scaled,
or neither, as always in mT5."""

from typing import Any

from model.hub.families.llama import GATED
from model.hub.family import Family, Keys
from model.hub.spec import ACTIVATIONS, BASE, RMSNORM_NO_BIAS, Spec, attention_spec
from model.hub.tensors import Table, columns

HEAD_DIMS = (
    "attention.head_dim attention.v_head_dim cross_attention.head_dim cross_attention.v_head_dim"
)
ENCODER = """
encoder.final_layer_norm                                        encoder.final_norm
encoder.block.0.layer.0.SelfAttention.relative_attention_bias   encoder.position.table
encoder.block.*.layer.0.layer_norm                              encoder.blocks.*.attention_norm
encoder.block.*.layer.0.SelfAttention.q                         encoder.blocks.*.attention.query
encoder.block.*.layer.0.SelfAttention.k                         encoder.blocks.*.attention.key
encoder.block.*.layer.0.SelfAttention.v                         encoder.blocks.*.attention.value
encoder.block.*.layer.0.SelfAttention.o                         encoder.blocks.*.attention.out
encoder.block.*.layer.1.layer_norm                              encoder.blocks.*.ffn_norm
encoder.block.*.layer.1.DenseReluDense.wo                       encoder.blocks.*.ffn.out
"""
CROSS = """
decoder.block.*.layer.1.layer_norm                              decoder.blocks.*.cross_norm
decoder.block.*.layer.1.EncDecAttention.q                       decoder.blocks.*.cross.query
decoder.block.*.layer.1.EncDecAttention.k                       decoder.blocks.*.cross.key
decoder.block.*.layer.1.EncDecAttention.v                       decoder.blocks.*.cross.value
decoder.block.*.layer.1.EncDecAttention.o                       decoder.blocks.*.cross.out
shared                                                          embedding.table
lm_head                                                         head.map
"""
INPUTS = """
encoder.block.*.layer.1.DenseReluDense.wi_0                     encoder.blocks.*.ffn.gate
encoder.block.*.layer.1.DenseReluDense.wi_1                     encoder.blocks.*.ffn.up
decoder.block.*.layer.2.DenseReluDense.wi_0                     decoder.blocks.*.ffn.gate
decoder.block.*.layer.2.DenseReluDense.wi_1                     decoder.blocks.*.ffn.up
"""
# {feed_forward_proj: kind of feed-forward network}; only "gated-gelu" is the tanh approximation
FFNS = {"gated-gelu": "geglu_tanh"}
FFNS |= {f"gated-{name}": kind for name, kind in GATED.items() if name != "gelu"} | ACTIVATIONS


def rules(spec: Spec, config: Any) -> Table:
    return columns(INPUTS if config.is_gated_act else INPUTS.replace("wi_1", "wi"))


def read(config: Any, spec: Spec) -> Spec:
    """The options of the head: an untied one is not scaled, and mT5 has no such key."""
    both = getattr(config, "scale_decoder_outputs", False)
    options = {"head.tie_weights": both, "head.scale_by_inv_sqrt_d": both}
    return options | {"context_length": getattr(config, "n_positions", 512)}


def write(spec: Spec) -> Keys:
    return {
        "n_positions": spec["context_length"],
        "tie_word_embeddings": spec["head.scale_by_inv_sqrt_d"],
    }


T5 = Family(
    model_type="t5",
    spec=BASE
    | attention_spec("cross_attention", bias=False, o_bias=False, scale=1.0)
    | RMSNORM_NO_BIAS
    | {"kind": "encoder_decoder", "position.kind": "relative", "attention.scale": 1.0},
    keys={
        "d_model": "d_model encoder.d_model",
        "num_layers": "encoder.n_layers",
        "num_decoder_layers": "n_layers",
        "num_heads": "n_heads encoder.n_heads",
        "d_kv": HEAD_DIMS,
        "d_ff": "ffn.d_ff",
        "feed_forward_proj": "ffn.kind",
        "relative_attention_num_buckets": "position.num_buckets",
        "relative_attention_max_distance": "position.max_distance",
        "layer_norm_epsilon": "norm.eps",
        "dropout_rate": "dropout",
    },
    values={"feed_forward_proj": FFNS},
    read=read,
    write=write,
    # layer.1 of a decoder is its cross-attention
    names=ENCODER + ENCODER.replace("encoder", "decoder").replace("layer.1", "layer.2") + CROSS,
    rules=rules,
)
MT5 = T5.derive("mt5")
