"""T5 1.0 and 1.1 (Flan): relative position bias, unscaled logits, a head both tied and scaled, or
neither, as always in mT5."""

from configs.registry import BelowOne, Positive
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
HEAD_DIMS = (
    "attention.head_dim attention.v_head_dim cross_attention.head_dim cross_attention.v_head_dim"
)
COPIES = "lm_head.weight encoder.embed_tokens.weight decoder.embed_tokens.weight"
GATED_ACT_FNS = {"geglu_tanh": "gelu_new", "swiglu": "silu"}
ACT_FNS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


ATTENTION = """
SIDE.block.*.layer.0.layer_norm              SIDE.blocks.*.attention_norm
SIDE.block.*.layer.0.SelfAttention.q         SIDE.blocks.*.attention.query
SIDE.block.*.layer.0.SelfAttention.k         SIDE.blocks.*.attention.key
SIDE.block.*.layer.0.SelfAttention.v         SIDE.blocks.*.attention.value
SIDE.block.*.layer.0.SelfAttention.o         SIDE.blocks.*.attention.out
"""
FFN = """
SIDE.block.*.layer.LAST.layer_norm           SIDE.blocks.*.ffn_norm
SIDE.block.*.layer.LAST.DenseReluDense.wo    SIDE.blocks.*.ffn.out
"""
GATED = """
SIDE.block.*.layer.LAST.DenseReluDense.wi_0  SIDE.blocks.*.ffn.gate
SIDE.block.*.layer.LAST.DenseReluDense.wi_1  SIDE.blocks.*.ffn.up
"""
PLAIN = """
SIDE.block.*.layer.LAST.DenseReluDense.wi    SIDE.blocks.*.ffn.up
"""
ENDS = """
SIDE.final_layer_norm                                           SIDE.final_norm
SIDE.block.0.layer.0.SelfAttention.relative_attention_bias      SIDE.position.table
"""


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    inputs = GATED if spec["ffn.kind"] in GATED_ACT_FNS else PLAIN
    stack = ENDS + ATTENTION + FFN + inputs
    cross = ATTENTION.replace("layer.0.Self", "layer.1.EncDec").replace("layer.0", "layer.1")
    encoder = stack.replace("LAST", "1").replace("SIDE", "encoder")
    decoder = (stack + cross.replace("attention", "cross")).replace("LAST", "2")
    decoder = decoder.replace("SIDE", "decoder")
    return columns(f"shared embedding.table lm_head head.map {encoder} {decoder}")


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """An untied head is not scaled; newer configs say so by scale_decoder_outputs."""
    tied = hf_config.get("tie_word_embeddings", True) is not False
    scaled = hf_config.get("scale_decoder_outputs", tied)
    n_layers = hf_config.get("num_decoder_layers") or spec["encoder.n_layers"]
    return {"n_layers": n_layers, "head.tie_weights": scaled, "head.scale_by_inv_sqrt_d": scaled}


def implied(spec: Spec) -> HFConfig:
    kind = spec["ffn.kind"]
    names = GATED_ACT_FNS | ACT_FNS
    return {"dense_act_fn": names[kind], "is_gated_act": kind in GATED_ACT_FNS}


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    scaled = spec["head.scale_by_inv_sqrt_d"]
    return {
        "num_decoder_layers": spec["n_layers"],
        "tie_word_embeddings": scaled,
        "scale_decoder_outputs": scaled,
    }


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
    required={"is_encoder_decoder": True},
    ignored="num_decoder_layers tie_word_embeddings scale_decoder_outputs",
    implied=implied,
    read=read,
    write=write,
    tensors=tensors,
    aliases=dict.fromkeys(COPIES.split(), "shared.weight"),
    fallback={"lm_head.weight": "shared.weight"},
    optional=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)
UNSCALED = {"head.tie_weights": False, "head.scale_by_inv_sqrt_d": False}
MT5 = T5._replace(
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    keys=T5.keys | {"feed_forward_proj": Key("ffn.kind", ACTIVATIONS, "gated-gelu")},
    read=lambda hf_config, spec: read(hf_config, spec) | UNSCALED,
)
