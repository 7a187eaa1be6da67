"""BART: post-norm, learned positions that begin at the third row, a bias after the head. mBART is
pre-norm; Pegasus and Marian have sinusoidal positions, and no norm of the embeddings."""

import torch

from configs.registry import BelowOne
from model.hub.family import Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, Spec, attention_spec
from model.hub.tensors import Table, columns, elementwise, skip_rows

SIDES = ("encoder", "decoder")
FLAGS = """
    normalize_before add_final_layer_norm static_position_embeddings add_bias_logits
"""
REQUIRED: HFConfig = dict.fromkeys(FLAGS.split(), False) | {"is_encoder_decoder": True}
PRE_NORM = {"normalize_before": True, "add_final_layer_norm": True}
LEARNED = {"normalize_embedding": True, "extra_pos_embeddings": 2}
WAVES = {"normalize_embedding": False, "static_position_embeddings": True}
COPIES = """
    lm_head.weight model.encoder.embed_tokens.weight model.decoder.embed_tokens.weight
"""
NAMES = """
model.SIDE.layernorm_embedding                SIDE.embedding_norm
model.SIDE.layer_norm                         SIDE.final_norm
model.SIDE.layers.*.fc1                       SIDE.blocks.*.ffn.up
model.SIDE.layers.*.fc2                       SIDE.blocks.*.ffn.out
model.SIDE.layers.*.final_layer_norm          SIDE.blocks.*.ffn_norm
"""
ATTENTION = """
model.SIDE.layers.*.self_attn_layer_norm      SIDE.blocks.*.attention_norm
model.SIDE.layers.*.self_attn.q_proj          SIDE.blocks.*.attention.query
model.SIDE.layers.*.self_attn.k_proj          SIDE.blocks.*.attention.key
model.SIDE.layers.*.self_attn.v_proj          SIDE.blocks.*.attention.value
model.SIDE.layers.*.self_attn.out_proj        SIDE.blocks.*.attention.out
"""


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    cross = ATTENTION.replace("self_attn", "encoder_attn").replace("attention", "cross")
    encoder = (NAMES + ATTENTION).replace("SIDE", "encoder")
    decoder = (NAMES + ATTENTION + cross).replace("SIDE", "decoder")
    ends = "model.shared  embedding.table  lm_head.weight  head.map.weight"
    table = columns(f"{ends} {encoder} {decoder}")
    for side in SIDES:
        table[f"model.{side}.embed_positions"] = skip_rows(2, f"{side}.position.table")
        if not spec["head.tie_weights"]:  # nothing is tied then, and each side has a copy
            copy = elementwise("embedding.table", torch.clone, torch.clone)
            table[f"model.{side}.embed_tokens"] = copy
    bias = elementwise("head.map.bias", lambda row: row[0], lambda bias: bias[None])
    return table | {"final_logits_bias": bias}


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
    required=REQUIRED | LEARNED,
    implied=lambda spec: {"num_hidden_layers": spec["encoder.n_layers"]},
    tensors=tensors,
    prefix="model.",
    aliases=dict.fromkeys(COPIES.split(), "model.shared.weight"),
    fallback=dict.fromkeys(COPIES.split()[1:], "model.shared.weight") | {"final_logits_bias": None},
)
MBART = BART._replace(
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    spec=BART.spec | {"block.kind": "pre"},
    required=REQUIRED | LEARNED | PRE_NORM,
)


SINUSOIDAL = {
    "position.kind": "sinusoidal",
    "position.base": 10000.0,
    "position.layout": "halves",
    "embedding_norm": False,
}
PEGASUS = MBART._replace(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    spec=MBART.spec | SINUSOIDAL,
    required=REQUIRED | PRE_NORM | WAVES,
    ignored="extra_pos_embeddings",
    optional=r"model\.(en|de)coder\.embed_positions\.weight",  # it is computed
)
MARIAN = PEGASUS._replace(
    model_type="marian",
    architecture="MarianMTModel",
    spec=BART.spec | SINUSOIDAL,
    required=REQUIRED | WAVES | {"share_encoder_decoder_embeddings": True},
    ignored="extra_pos_embeddings decoder_vocab_size",
)
