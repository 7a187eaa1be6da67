"""BART: post-norm, learned positions that begin at the third row, a bias after the head. mBART is
pre-norm; Pegasus and Marian have a table of sines as positions, and no norm on the embeddings."""

from typing import Any

from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, Spec, attention_spec
from model.hub.tensors import Table, columns, skip_rows

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
lm_head.weight                                   head.map.weight
"""
COPIES = """
model.encoder.embed_tokens                       embedding.table
model.decoder.embed_tokens                       embedding.table
"""
POSITIONS = """
model.encoder.embed_positions                    encoder.position.table
model.decoder.embed_positions                    decoder.position.table
"""


def rules(spec: Spec, config: Any) -> Table:
    table = columns("final_logits_bias head.map.bias", lambda row: row[0], lambda row: row[None])
    if not spec["head.tie_weights"]:  # then nothing is tied, and each side has a copy
        table |= columns(COPIES)
    return table | columns("model.shared embedding.table")


BART = Family(
    model_type="bart",
    spec={**BASE, **attention_spec("cross_attention"), **POST_NORM}
    | {"kind": "encoder_decoder", "position.kind": "learned", "norm.eps": 1e-5},
    keys={
        "d_model": "d_model encoder.d_model",
        "encoder_layers": "encoder.n_layers",
        "decoder_layers": "n_layers",
        "encoder_attention_heads": "n_heads encoder.n_heads",
        "decoder_attention_heads": "n_heads",
        "max_position_embeddings": "context_length",
        "encoder_ffn_dim": "ffn.d_ff",
        "decoder_ffn_dim": "ffn.d_ff",
        "activation_function": "ffn.kind",
        "scale_embedding": "embedding.scale_by_sqrt_d",
        "tie_word_embeddings": "head.tie_weights",
        "dropout": "dropout",
    },
    values={"activation_function": ACTIVATIONS},
    names=ENCODER + ENCODER.replace("encoder", "decoder") + CROSS,
    rules=lambda spec, config: rules(spec, config) | skip_rows(2, POSITIONS),
    optional=r"model\.shared",  # unused unless it is tied
    note="training changes the bias of the logits and the embedding of padding, which are fixed there",
)
MBART = BART.derive("mbart", spec={"block.kind": "pre"})
PEGASUS = MBART.derive(
    "pegasus",
    spec={"embedding_norm": False},
    names=BART.names + POSITIONS,
    rules=rules,
    optional=rf"{BART.optional}|embed_positions",
    note=f"{BART.note}, and so are its positions",
)
MARIAN = PEGASUS.derive("marian", spec={"block.kind": "post"})
