"""BART: post-norm, learned positions that begin at the third row, a bias after the head. mBART is
pre-norm; Pegasus and Marian have sinusoidal positions, and no norm of the embeddings."""

from configs.registry import BelowOne
from model.hub.family import Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, Spec, attention_spec
from model.hub.tensors import Table, columns, skip_rows

COPIES = """
    lm_head.weight model.encoder.embed_tokens.weight model.decoder.embed_tokens.weight
"""
ENCODER = """
model.encoder.layernorm_embedding                encoder.embedding_norm
model.encoder.layer_norm                         encoder.final_norm
model.encoder.layers.*.self_attn_layer_norm      encoder.blocks.*.attention_norm
model.encoder.layers.*.self_attn.q_proj          encoder.blocks.*.attention.query
model.encoder.layers.*.self_attn.k_proj          encoder.blocks.*.attention.key
model.encoder.layers.*.self_attn.v_proj          encoder.blocks.*.attention.value
model.encoder.layers.*.self_attn.out_proj        encoder.blocks.*.attention.out
model.encoder.layers.*.fc1                       encoder.blocks.*.ffn.up
model.encoder.layers.*.fc2                       encoder.blocks.*.ffn.out
model.encoder.layers.*.final_layer_norm          encoder.blocks.*.ffn_norm
"""
CROSS = """
model.decoder.layers.*.encoder_attn_layer_norm   decoder.blocks.*.cross_norm
model.decoder.layers.*.encoder_attn.q_proj       decoder.blocks.*.cross.query
model.decoder.layers.*.encoder_attn.k_proj       decoder.blocks.*.cross.key
model.decoder.layers.*.encoder_attn.v_proj       decoder.blocks.*.cross.value
model.decoder.layers.*.encoder_attn.out_proj     decoder.blocks.*.cross.out
model.shared                                     embedding.table
lm_head.weight                                   head.map.weight
"""


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    bias = "final_logits_bias head.map.bias"
    table = columns(bias, lambda row: row[0], lambda bias: bias[None])
    for side in ("encoder", "decoder"):
        table |= skip_rows(2, f"model.{side}.embed_positions {side}.position.table")
        if not spec["head.tie_weights"]:  # nothing is tied then, and each side has a copy
            table |= columns(f"model.{side}.embed_tokens embedding.table")
    return table


BART = Family(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    spec={**BASE, **attention_spec("cross_attention"), **POST_NORM}
    | {"kind": "encoder_decoder", "position.kind": "learned", "norm.eps": 1e-5},
    keys={
        "d_model": Key("d_model encoder.d_model"),
        "encoder_layers": Key("encoder.n_layers"),
        "decoder_layers": Key("n_layers"),
        "encoder_attention_heads": Key("n_heads encoder.n_heads"),
        "decoder_attention_heads": Key("n_heads"),
        "max_position_embeddings": Key("context_length", default=1024),
        "encoder_ffn_dim": Key("ffn.d_ff"),
        "decoder_ffn_dim": Key("ffn.d_ff"),
        "activation_function": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "scale_embedding": Key("embedding.scale_by_sqrt_d", bool, False),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "dropout": Key("dropout", BelowOne, 0.1),
    },
    required={
        "is_encoder_decoder": True,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
        "static_position_embeddings": False,
        "extra_pos_embeddings": 2,
    },
    implied=lambda spec: {"num_hidden_layers": spec["encoder.n_layers"]},
    names=ENCODER + ENCODER.replace("encoder", "decoder") + CROSS,
    rules=rules,
    prefix="model.",
    aliases=dict.fromkeys(COPIES.split(), "model.shared.weight"),
    fallback=dict.fromkeys(COPIES.split()[1:], "model.shared.weight") | {"final_logits_bias": None},
)
MBART = BART.derive(
    "mbart",
    "MBartForConditionalGeneration",
    spec={"block.kind": "pre"},
    required={"normalize_before": True, "add_final_layer_norm": True},
)
SINUSOIDAL = {
    "position.kind": "sinusoidal",
    "position.base": 10000.0,
    "position.layout": "halves",
    "embedding_norm": False,
}
WAVES = {"normalize_embedding": False, "static_position_embeddings": True}
PEGASUS = MBART.derive(
    "pegasus",
    "PegasusForConditionalGeneration",
    without="extra_pos_embeddings",
    spec=SINUSOIDAL,
    required=WAVES,
    ignored="extra_pos_embeddings",
    optional=r"model\.(en|de)coder\.embed_positions\.weight",  # it is computed
)
MARIAN = BART.derive(
    "marian",
    "MarianMTModel",
    spec=SINUSOIDAL,
    required={**WAVES, "share_encoder_decoder_embeddings": True},
    ignored="extra_pos_embeddings decoder_vocab_size",
    optional=PEGASUS.optional,
)
