"""Granite: Llama with four multipliers. That of the attention scores is an option here; the others
are part of the weights."""

from configs.registry import Positive, check_value
from model.hub.families.llama import LLAMA, NAMES, read, write
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns, scaled

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "logits_scaling")


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    embedding, residual, divisor = (hf_config.get(name, 1.0) for name in MULTIPLIERS)
    if spec["head.tie_weights"]:  # the head has the scaled embedding, too
        divisor *= embedding
    factors = {
        "model.embed_tokens": embedding,
        "model.layers.*.self_attn.o_proj": residual,
        "model.layers.*.mlp.down_proj": residual,
        "model.norm": 1 / divisor,
    }
    table = columns(NAMES)
    for hf_name, factor in factors.items():
        table[hf_name] = scaled(table[hf_name].names[0], factor)
    return table


def read_granite(hf_config: HFConfig, spec: Spec) -> Spec:
    for name in MULTIPLIERS:
        check_value(name, hf_config.get(name, 1.0), Positive)
    scale = spec["attention.scale"]
    usual = spec["attention.head_dim"] ** -0.5
    return {"attention.scale": None if scale == usual else scale, **read(hf_config, spec)}


def write_granite(spec: Spec, ids: HFConfig) -> HFConfig:
    scale = spec.get("attention.scale") or spec["attention.head_dim"] ** -0.5
    keys = {"attention_multiplier": scale, **dict.fromkeys(MULTIPLIERS, 1.0)}
    return keys | write(spec, ids)


GRANITE = LLAMA._replace(
    model_type="granite",
    architecture="GraniteForCausalLM",
    keys={
        **LLAMA.keys,
        "attention_multiplier": Key("attention.scale", Positive, 1.0),
    },
    ignored=f"{LLAMA.ignored} {' '.join(MULTIPLIERS)}",
    read=read_granite,
    write=write_granite,
    tensors=tensors,
)
