"""T5 1.0 and 1.1 (Flan): relative position bias, unscaled logits, a head both tied and scaled, or
neither, as always in mT5."""

from configs.registry import BelowOne, Count, Positive
from model.hub.family import Family, HFConfig, Key
from model.hub.spec import BASE, RMSNORM_NO_BIAS, Spec, attention_spec
from model.hub.tensors import Table, columns

ACTIVATIONS = {
    "gated-gelu": "geglu_tanh",  # as transformers reads it
    "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
}
ACT_FNS = {"geglu_tanh": "gelu_new", "swiglu": "silu", "gelu_tanh": "gelu_new"}
GATED_KINDS = ("geglu_tanh", "swiglu")
HEAD_DIMS = (
    "attention.head_dim attention.v_head_dim cross_attention.head_dim cross_attention.v_head_dim"
)
COPIES = "lm_head.weight encoder.embed_tokens.weight decoder.embed_tokens.weight"
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


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    is_gated = spec["ffn.kind"] in GATED_KINDS
    return columns(INPUTS if is_gated else INPUTS.replace("wi_1", "wi"))


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """An untied head is not scaled. In newer configs tie_word_embeddings is always true, and
    scale_decoder_outputs says what it used to say."""
    tied = hf_config["tie_word_embeddings"] is not False
    both = hf_config.get("scale_decoder_outputs", tied)
    n_layers = spec["n_layers"] or spec["encoder.n_layers"]
    return {"n_layers": n_layers, "head.tie_weights": both, "head.scale_by_inv_sqrt_d": both}


def implied(spec: Spec) -> HFConfig:
    kind = spec["ffn.kind"]
    return {"dense_act_fn": ACT_FNS.get(kind, kind), "is_gated_act": kind in GATED_KINDS}


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    scaled = spec["head.scale_by_inv_sqrt_d"]
    return {"tie_word_embeddings": scaled, "scale_decoder_outputs": scaled}


T5 = Family(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    spec=BASE
    | attention_spec("cross_attention", bias=False, o_bias=False, scale=1.0)
    | RMSNORM_NO_BIAS
    | {"kind": "encoder_decoder", "position.kind": "relative", "attention.scale": 1.0},
    keys={
        "d_model": Key("d_model encoder.d_model"),
        "num_layers": Key("encoder.n_layers"),
        "num_decoder_layers": Key("n_layers", Count | None, None),
        "num_heads": Key("n_heads encoder.n_heads"),
        "n_positions": Key("context_length", default=512),
        "d_kv": Key(HEAD_DIMS),
        "d_ff": Key("ffn.d_ff"),
        "feed_forward_proj": Key("ffn.kind", ACTIVATIONS, "relu"),
        "relative_attention_num_buckets": Key("position.num_buckets", default=32),
        "relative_attention_max_distance": Key("position.max_distance", default=128),
        "layer_norm_epsilon": Key("norm.eps", Positive, 1e-6),
        "dropout_rate": Key("dropout", BelowOne, 0.1),
    },
    defaults={"tie_word_embeddings": True},
    required={"is_encoder_decoder": True},
    ignored="scale_decoder_outputs",
    implied=implied,
    read=read,
    write=write,
    # layer.1 of a decoder is its cross-attention
    names=ENCODER + ENCODER.replace("encoder", "decoder").replace("layer.1", "layer.2") + CROSS,
    rules=rules,
    aliases=dict.fromkeys(COPIES.split(), "shared.weight"),
    fallback={"lm_head.weight": "shared.weight"},
    optional=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)
UNSCALED = {"head.tie_weights": False, "head.scale_by_inv_sqrt_d": False}
MT5 = T5.derive(
    "mt5",
    "MT5ForConditionalGeneration",
    defaults={"feed_forward_proj": "gated-gelu"},
    read=lambda hf_config, spec: read(hf_config, spec) | UNSCALED,
)
