"""DeepSeek-V3 with dense layers: it rotates neighboring channels, and packs matrices in pairs."""

from typing import Any

import torch

from configs.errors import HubError
from model.hub.families.llama import DECODER, GATE_NAMES, NAMES
from model.hub.families.positions import evens_first, reordered, yarn_mscale
from model.hub.spec import Spec, attention_spec
from model.hub.tensors import Table, TensorRule, packed

LATENT_NAMES = """
model.layers.*.self_attn.q_a_proj             stack.blocks.*.attention.query.0
model.layers.*.self_attn.q_a_layernorm        stack.blocks.*.attention.query.1
model.layers.*.self_attn.kv_a_layernorm       stack.blocks.*.attention.latent_norm
"""
QUERIES = """
model.layers.*.self_attn.q_proj               stack.blocks.*.attention.query
model.layers.*.self_attn.q_b_proj             stack.blocks.*.attention.query.2
"""
DIMS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")


def rules(spec: Spec, config: Any) -> Table:
    nope, rotary, value, latent, _ = [spec[f"attention.{dim}"] for dim in DIMS]
    order = evens_first(rotary) if config.rope_interleave else torch.arange(rotary)
    query_order = torch.cat([torch.arange(nope), nope + order])
    # YaRN may scale the attention scores; here the queries carry that factor
    rope = config.rope_parameters
    mscale = rope["rope_type"] == "yarn" and rope.get("mscale_all_dim")
    scale = yarn_mscale(rope["factor"], mscale) ** 2 if mscale else 1.0

    latent_and_key = TensorRule(
        ("stack.blocks.*.attention.kv_down", "stack.blocks.*.attention.k_rope"),
        lambda weight: [weight[:latent], weight[latent:][order]],
        lambda parts: torch.cat([parts[0], parts[1][order.argsort()]]),
    )
    keys_and_values = packed(("attention.key", "attention.value"), [nope, value], spec["n_heads"])
    return reordered(QUERIES, query_order, scale) | {
        "model.layers.*.self_attn.kv_a_proj_with_mqa": latent_and_key,
        "model.layers.*.self_attn.kv_b_proj": keys_and_values,
    }


def read(config: Any, spec: Spec) -> Spec:
    if config.first_k_dense_replace < spec["n_layers"]:
        raise HubError("first_k_dense_replace: only models with dense layers alone are supported")
    return {}


DEEPSEEK = DECODER.derive(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    without=f"attention_bias head_dim {' '.join(attention_spec('attention'))}",
    spec={"attention.kind": "mla"},
    keys={dim: f"attention.{dim}" for dim in DIMS} | {"num_key_value_heads": "n_heads"},
    values={"rms_norm_eps": {1e-6: 1e-6}},  # that of the norms of latents, whatever it is
    names=NAMES + GATE_NAMES + LATENT_NAMES,
    rules=rules,
    read=read,
    write=lambda spec: {"first_k_dense_replace": spec["n_layers"]},
)
