"""Bloom: alibi, and a norm after the embedding."""

from configs.registry import BelowOne, Positive
from model.hub.families.gpt_neox import DECODER, packed_heads
from model.hub.family import Family, HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns

NAMES = """
transformer.word_embeddings                     embedding.table
transformer.word_embeddings_layernorm           stack.embedding_norm
transformer.ln_f                                stack.final_norm
lm_head                                         head.map
transformer.h.*.input_layernorm                 stack.blocks.*.attention_norm
transformer.h.*.post_attention_layernorm        stack.blocks.*.ffn_norm
transformer.h.*.self_attention.dense            stack.blocks.*.attention.out
transformer.h.*.mlp.dense_h_to_4h               stack.blocks.*.ffn.up
transformer.h.*.mlp.dense_4h_to_h               stack.blocks.*.ffn.out
"""


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    return columns(NAMES) | {"transformer.h.*.self_attention.query_key_value": packed_heads(spec)}


END_KEYS = {
    "layer_norm_epsilon": Key("norm.eps", Positive, 1e-5),
    "tie_word_embeddings": Key("head.tie_weights", bool, True),
    "hidden_dropout": Key("dropout", BelowOne, 0.0),
}
BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    spec={
        **DECODER,
        "block.kind": "pre",
        "position.kind": "alibi",
        "embedding_norm": True,
        "ffn.kind": "gelu_tanh",
    },
    keys={
        "hidden_size": Key("d_model", older="n_embed"),
        "n_layer": Key("n_layers", older="num_hidden_layers"),
        "n_head": Key("n_heads", older="num_attention_heads"),
        "seq_length": Key("context_length", default=2048),
        **END_KEYS,
    },
    required={"apply_residual_connection_post_layernorm": False},
    ignored="slow_but_exact offset_alibi skip_bias_add skip_bias_add_qkv attention_softmax_in_fp32 "
    "masked_softmax_fusion bias_dropout_fusion",
    read=lambda hf_config, spec: {"ffn.d_ff": 4 * spec["d_model"]},
    tensors=tensors,
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
)
