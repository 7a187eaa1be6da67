"""Granite: Llama with four multipliers. That of the attention scores is an option here; the others
are part of the weights."""

from typing import Any

from model.hub.families.llama import DECODER, own_scale, scale_of
from model.hub.spec import Spec
from model.hub.tensors import Table, scaled

ONES = {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}
OUTPUTS = """
model.layers.*.self_attn.o_proj      stack.blocks.*.attention.out
model.layers.*.mlp.down_proj         stack.blocks.*.ffn.out
"""


def rules(spec: Spec, config: Any) -> Table:
    divisor = config.logits_scaling
    if spec["head.tie_weights"]:  # the head has the scaled embedding, too
        divisor *= config.embedding_multiplier
    table = scaled("model.embed_tokens embedding.table", config.embedding_multiplier)
    table |= scaled(OUTPUTS, config.residual_multiplier)
    return table | scaled("model.norm stack.final_norm", 1 / divisor)


GRANITE = DECODER.derive(
    "granite",
    "GraniteForCausalLM",
    keys={"mlp_bias": "ffn.bias"},
    rules=rules,
    read=lambda config, spec: own_scale(spec, config.attention_multiplier),
    write=lambda spec, special: {"attention_multiplier": scale_of(spec), **ONES},
)
