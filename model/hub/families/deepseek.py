"""DeepSeek-V3 with dense layers: it rotates neighboring channels, and packs matrices in pairs."""

import torch

from configs.errors import HubError
from configs.registry import Count, Natural, check_value
from model.hub.families.llama import DECODER, GATE_NAMES, NAMES
from model.hub.families.rope import (
    evens_first,
    reordered,
    rope_parameters,
    yarn_mscale,
)
from model.hub.family import HFConfig, Key
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
IGNORED = """
    moe_intermediate_size moe_layer_freq n_group topk_group topk_method n_routed_experts
    n_shared_experts num_experts_per_tok norm_topk_prob routed_scaling_factor scoring_func
    num_nextn_predict_layers num_mtp_layers output_router_logits ep_size aux_loss_alpha seq_aux
    router_aux_loss_coef
"""


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    dims = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    nope, rotary, value, latent = (spec[f"attention.{dim}"] for dim in dims)
    order = evens_first(rotary) if hf_config["rope_interleave"] else torch.arange(rotary)
    query_order = torch.cat([torch.arange(nope), nope + order])
    # YaRN may scale the attention scores; here the queries carry that factor
    rope = rope_parameters(hf_config)
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


def check_dense(hf_config: HFConfig, spec: Spec) -> Spec:
    n_dense = check_value("first_k_dense_replace", hf_config["first_k_dense_replace"], Natural)
    if n_dense < spec["n_layers"]:
        raise HubError(f"first_k_dense_replace is {n_dense}; MoE layers are not supported")
    return {}


def implied(spec: Spec) -> HFConfig:
    nope, rotary = spec["attention.qk_nope_head_dim"], spec["attention.qk_rope_head_dim"]
    return {
        "num_key_value_heads": spec["n_heads"],
        "qk_head_dim": nope + rotary,
        "head_dim": rotary,
    }


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    keys = {"first_k_dense_replace": spec["n_layers"], "rope_interleave": True}
    return keys | {"rms_norm_eps": 1e-6} | implied(spec)


DEEPSEEK = DECODER.derive(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    without=f"attention_bias num_key_value_heads head_dim {' '.join(attention_spec('attention'))}",
    spec={"attention.kind": "mla"},
    keys={
        "q_lora_rank": Key("attention.q_lora_rank", Count | None, 1536),
        "kv_lora_rank": Key("attention.kv_lora_rank"),
        "qk_nope_head_dim": Key("attention.qk_nope_head_dim"),
        "qk_rope_head_dim": Key("attention.qk_rope_head_dim"),
        "v_head_dim": Key("attention.v_head_dim"),
    },
    names=NAMES + GATE_NAMES + LATENT_NAMES,
    rules=rules,
    defaults={"first_k_dense_replace": 3, "rope_interleave": True},
    required={"attention_bias": False, "rms_norm_eps": 1e-6},
    ignored=f"{DECODER.ignored} {IGNORED}",
    implied=implied,
    read=check_dense,
    write=write,
)
