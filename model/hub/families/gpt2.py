"""GPT-2: query, key and value in one matrix, and every matrix transposed. OPT: learned positions
that begin at the third row."""

import torch

from model.hub.family import SIZES, Family
from model.hub.spec import ACTIVATIONS, BASE
from model.hub.tensors import QKV, TensorRule, columns, skip_rows

NAMES = """
transformer.wte           embedding.table
transformer.wpe           stack.position.table
transformer.h.*.ln_1      stack.blocks.*.attention_norm
transformer.h.*.ln_2      stack.blocks.*.ffn_norm
transformer.ln_f          stack.final_norm
lm_head                   head.map
"""
TRANSPOSED = """
transformer.h.*.attn.c_proj      stack.blocks.*.attention.out
transformer.h.*.mlp.c_fc         stack.blocks.*.ffn.up
transformer.h.*.mlp.c_proj       stack.blocks.*.ffn.out
"""
QUERY_KEY_VALUE = TensorRule(
    tuple(f"stack.blocks.*.{name}" for name in QKV),
    lambda weight: list(weight.t().chunk(3)),
    lambda parts: torch.cat(parts).t(),
)
GPT2 = Family(
    model_type="gpt2",
    spec=BASE | {"kind": "decoder", "position.kind": "learned"},
    keys={
        **SIZES,
        "n_inner": "ffn.d_ff",
        "scale_attn_weights": "attention.scale",
        "activation_function": "ffn.kind",
        "layer_norm_epsilon": "norm.eps",
        "resid_pdrop": "dropout",
    },
    values={"scale_attn_weights": {True: None, False: 1.0}, "activation_function": ACTIVATIONS},
    write=lambda spec: {"n_ctx": spec["context_length"]},  # converters read it
    names=NAMES,
    rules=lambda spec, config: (
        columns(TRANSPOSED, torch.t, torch.t) | {"transformer.h.*.attn.c_attn": QUERY_KEY_VALUE}
    ),
)
OPT_NAMES = """
model.decoder.embed_tokens                     embedding.table
model.decoder.final_layer_norm                 stack.final_norm
lm_head                                        head.map
model.decoder.layers.*.self_attn_layer_norm    stack.blocks.*.attention_norm
model.decoder.layers.*.self_attn.q_proj        stack.blocks.*.attention.query
model.decoder.layers.*.self_attn.k_proj        stack.blocks.*.attention.key
model.decoder.layers.*.self_attn.v_proj        stack.blocks.*.attention.value
model.decoder.layers.*.self_attn.out_proj      stack.blocks.*.attention.out
model.decoder.layers.*.final_layer_norm        stack.blocks.*.ffn_norm
model.decoder.layers.*.fc1                     stack.blocks.*.ffn.up
model.decoder.layers.*.fc2                     stack.blocks.*.ffn.out
"""
POSITIONS = "model.decoder.embed_positions stack.position.table"
OPT = Family(
    model_type="opt",
    spec=BASE | {"kind": "decoder", "position.kind": "learned", "norm.eps": 1e-5},
    keys={
        **SIZES,
        "ffn_dim": "ffn.d_ff",
        "activation_function": "ffn.kind",
        "enable_bias": "attention.bias attention.o_bias ffn.bias",
        "layer_norm_elementwise_affine": "norm.weight norm.bias",
        "dropout": "dropout",
    },
    values={"activation_function": ACTIVATIONS},
    write=lambda spec: {"word_embed_proj_dim": spec["d_model"]},
    names=OPT_NAMES,
    rules=lambda spec, config: skip_rows(2, POSITIONS),
)
