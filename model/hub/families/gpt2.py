"""GPT-2: query, key and value in one matrix, and every matrix transposed."""

import torch
from torch import Tensor

from configs.registry import BelowOne, Count, Positive, check_value
from model.hub.family import Family, HFConfig, Key
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
BY_LAYER = "scale_attn_by_inverse_layer_idx"


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    table = columns(TRANSPOSED, torch.t, torch.t)
    by_layer = check_value(BY_LAYER, hf_config[BY_LAYER], bool)
    for layer in range(spec["n_layers"]):
        divisor = layer + 1 if by_layer else 1
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
        "n_embd": Key("d_model"),
        "n_layer": Key("n_layers"),
        "n_head": Key("n_heads"),
        "n_positions": Key("context_length"),
        "n_inner": Key("ffn.d_ff", Count | None, None),
        "scale_attn_weights": Key("attention.scale", {True: None, False: 1.0}, True),
        "activation_function": Key("ffn.kind", ACTIVATIONS, "gelu_new"),
        "layer_norm_epsilon": Key("norm.eps", Positive, 1e-5),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "resid_pdrop": Key("dropout", BelowOne, 0.1),
    },
    defaults={BY_LAYER: False},
    ignored="n_ctx reorder_and_upcast_attn",
    write=lambda spec, ids: dict.fromkeys(("embd_pdrop", "attn_pdrop"), float(spec["dropout"])),
    names=NAMES,
    rules=rules,
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.wte.weight"},
    optional=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
)
