"""GPT-2: query, key and value in one matrix, and every matrix transposed."""

from typing import Any

import torch
from torch import Tensor

from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import QKV, Table, TensorRule, columns

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


def rules(spec: Spec, config: Any) -> Table:
    table = columns(TRANSPOSED, torch.t, torch.t)
    for layer in range(spec["n_layers"]):
        divisor = layer + 1 if config.scale_attn_by_inverse_layer_idx else 1
        divisors = torch.tensor([divisor, 1, 1]).repeat_interleave(spec["d_model"])
        table[f"transformer.h.{layer}.attn.c_attn"] = query_key_value(layer, divisors)
    return table


def query_key_value(layer: int, divisors: Tensor) -> TensorRule:
    """The scores are divided; here the queries."""
    return TensorRule(
        tuple(f"stack.blocks.{layer}.{name}" for name in QKV),
        lambda weight: list((weight / divisors).t().chunk(3)),
        lambda parts: torch.cat(parts).t() * divisors,
    )


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    spec=BASE | {"kind": "decoder", "position.kind": "learned"},
    keys={
        "n_embd": "d_model",
        "n_layer": "n_layers",
        "n_head": "n_heads",
        "n_positions": "context_length",
        "n_inner": "ffn.d_ff",
        "scale_attn_weights": "attention.scale",
        "activation_function": "ffn.kind",
        "layer_norm_epsilon": "norm.eps",
        "tie_word_embeddings": "head.tie_weights",
        "resid_pdrop": "dropout",
    },
    values={"scale_attn_weights": {True: None, False: 1.0}, "activation_function": ACTIVATIONS},
    write=lambda spec, special: {"n_ctx": spec["context_length"]},  # converters read it
    names=NAMES,
    rules=rules,
)
