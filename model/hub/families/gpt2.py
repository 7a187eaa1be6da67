"""GPT-2: query, key and value in one matrix, and every matrix transposed."""

import torch

from model.hub.family import SIZES, Family
from model.hub.spec import ACTIVATIONS, BASE
from model.hub.tensors import QKV, TensorRule, columns

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
