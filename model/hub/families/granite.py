"""Granite: Llama with four multipliers. That of the attention scores is an option here; the others
are part of the weights."""

from configs.registry import Positive, check_value
from model.hub.families.llama import DECODER, MLP_BIAS, own_scale, scale_of
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, scaled

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
OUTPUTS = """
model.layers.*.self_attn.o_proj      stack.blocks.*.attention.out
model.layers.*.mlp.down_proj         stack.blocks.*.ffn.out
"""
ONES = dict.fromkeys(MULTIPLIERS, 1.0)


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    embedding, residual, divisor = (
        check_value(name, hf_config[name], Positive) for name in MULTIPLIERS
    )
    if spec["head.tie_weights"]:  # the head has the scaled embedding, too
        divisor *= embedding
    table = scaled("model.embed_tokens embedding.table", embedding)
    return table | scaled(OUTPUTS, residual) | scaled("model.norm stack.final_norm", 1 / divisor)


GRANITE = DECODER.derive(
    "granite",
    "GraniteForCausalLM",
    keys={"attention_multiplier": Key("attention.scale", Positive, 1.0), **MLP_BIAS},
    defaults={"max_position_embeddings": 2048, **ONES},
    read=lambda hf_config, spec: own_scale(spec, spec["attention.scale"]),
    write=lambda spec, ids: {"attention_multiplier": scale_of(spec), **ONES},
    rules=rules,
)
