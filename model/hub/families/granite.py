"""Granite: Llama with four multipliers. That of the attention scores is an option here; the others
are part of the weights."""

from configs.registry import Positive, check_value
from model.hub.families.llama import LLAMA, read, write
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, scaled

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "logits_scaling")


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    embedding, residual, divisor = (
        check_value(name, hf_config[name], Positive) for name in MULTIPLIERS
    )
    if spec["head.tie_weights"]:  # the head has the scaled embedding, too
        divisor *= embedding
    return {
        "model.embed_tokens": scaled("embedding.table", embedding),
        "model.layers.*.self_attn.o_proj": scaled("stack.blocks.*.attention.out", residual),
        "model.layers.*.mlp.down_proj": scaled("stack.blocks.*.ffn.out", residual),
        "model.norm": scaled("stack.final_norm", 1 / divisor),
    }


def read_granite(hf_config: HFConfig, spec: Spec) -> Spec:
    scale = spec["attention.scale"]
    usual = spec["attention.head_dim"] ** -0.5
    return {"attention.scale": None if scale == usual else scale, **read(hf_config, spec)}


def write_granite(spec: Spec, ids: HFConfig) -> HFConfig:
    scale = spec.get("attention.scale") or spec["attention.head_dim"] ** -0.5
    keys = {"attention_multiplier": scale, **dict.fromkeys(MULTIPLIERS, 1.0)}
    return keys | write(spec, ids)


GRANITE = LLAMA.derive(
    "granite",
    "GraniteForCausalLM",
    keys={"attention_multiplier": Key("attention.scale", Positive, 1.0)},
    defaults=dict.fromkeys(MULTIPLIERS, 1.0),
    read=read_granite,
    write=write_granite,
    rules=rules,
)
