"""DeepSeek-V3 with dense layers: it rotates neighboring channels, and packs matrices in pairs."""

import torch
from torch import Tensor

from configs.errors import HubError
from configs.registry import Count, Natural, check_value
from model.hub.families.llama import LLAMA, LLAMA_KEYS, NAMES
from model.hub.families.rope import KEYS, read_rope, rope_parameters, write_rope, yarn_mscale
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, TensorRule, columns, elementwise

LATENT_NAMES = """
model.layers.*.self_attn.q_a_proj             stack.blocks.*.attention.query.0
model.layers.*.self_attn.q_a_layernorm        stack.blocks.*.attention.query.1
model.layers.*.self_attn.kv_a_layernorm       stack.blocks.*.attention.latent_norm
"""
MOE_KEYS = """
    moe_intermediate_size moe_layer_freq n_group topk_group topk_method n_routed_experts
    n_shared_experts num_experts_per_tok norm_topk_prob routed_scaling_factor scoring_func
    num_nextn_predict_layers num_mtp_layers output_router_logits ep_size aux_loss_alpha seq_aux
    router_aux_loss_coef
"""


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    dims = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
    nope, rotary, value, latent, q_rank = (spec[f"attention.{dim}"] for dim in dims)
    n_heads, interleaved = spec["n_heads"], hf_config.get("rope_interleave", True)
    order = row_order(n_heads, nope, rotary, interleaved)
    latent_order = row_order(1, latent, rotary, interleaved)
    rope = rope_parameters(hf_config)
    # YaRN may scale the attention scores; here the queries carry that factor
    mscale = rope["rope_type"] == "yarn" and rope.get("mscale_all_dim")
    scale = yarn_mscale(rope["factor"], mscale) ** 2 if mscale else 1.0

    def split_heads(weight: Tensor) -> list[Tensor]:
        heads = weight.unflatten(0, (n_heads, -1))
        return [part.flatten(0, 1) for part in heads.split([nope, value], 1)]

    def join_heads(parts: list[Tensor]) -> Tensor:
        heads = [part.unflatten(0, (n_heads, -1)) for part in parts]
        return torch.cat(heads, 1).flatten(0, 1)

    attention, layer = "stack.blocks.*.attention", "model.layers.*.self_attn"
    table = columns(f"{NAMES} {LATENT_NAMES}")
    del table[f"{layer}.k_proj"], table[f"{layer}.v_proj"]
    return table | {
        f"{layer}.q_b_proj" if q_rank else f"{layer}.q_proj": elementwise(
            f"{attention}.query.2" if q_rank else f"{attention}.query",
            lambda weight: weight[order] * scale,
            lambda weight: weight[order.argsort()] * (1 / scale),
        ),
        f"{layer}.kv_a_proj_with_mqa": TensorRule(
            (f"{attention}.kv_down", f"{attention}.k_rope"),
            lambda weight: weight[latent_order].split([latent, rotary]),
            lambda parts: torch.cat(parts)[latent_order.argsort()],
        ),
        f"{layer}.kv_b_proj": TensorRule(
            (f"{attention}.key", f"{attention}.value"), split_heads, join_heads
        ),
    }


def row_order(n_heads: int, n_fixed: int, n_rotary: int, interleaved: bool) -> Tensor:
    """Rows of n_heads such that the even rotary channels of a head come before its odd ones."""
    rotary = torch.arange(n_rotary)
    if interleaved:
        rotary = torch.cat([rotary[0::2], rotary[1::2]])
    head = torch.cat([torch.arange(n_fixed), n_fixed + rotary])
    firsts = torch.arange(n_heads)[:, None] * len(head)
    return (firsts + head).flatten()


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    n_dense = check_value(
        "first_k_dense_replace", hf_config.get("first_k_dense_replace", 3), Natural
    )
    if n_dense < spec["n_layers"]:
        raise HubError(f"first_k_dense_replace is {n_dense}; MoE layers are not supported")
    return read_rope(hf_config)


def implied(spec: Spec) -> HFConfig:
    nope, rotary = spec["attention.qk_nope_head_dim"], spec["attention.qk_rope_head_dim"]
    return {
        "num_key_value_heads": spec["n_heads"],
        "qk_head_dim": nope + rotary,
        "head_dim": rotary,
    }


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    keys = {
        "first_k_dense_replace": spec["n_layers"],
        "rope_interleave": True,
        "rms_norm_eps": 1e-6,
    }
    return keys | implied(spec) | write_rope(spec)


DEEPSEEK = LLAMA._replace(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    spec={
        "attention.kind": "mla",
        **{n: value for n, value in LLAMA.spec.items() if not n.startswith("attention.")},
    },
    keys={
        **LLAMA_KEYS,
        "q_lora_rank": Key("attention.q_lora_rank", Count | None, 1536),
        "kv_lora_rank": Key("attention.kv_lora_rank"),
        "qk_nope_head_dim": Key("attention.qk_nope_head_dim"),
        "qk_rope_head_dim": Key("attention.qk_rope_head_dim"),
        "v_head_dim": Key("attention.v_head_dim"),
    },
    required={"attention_bias": False, "rms_norm_eps": 1e-6},
    ignored=f"{KEYS} first_k_dense_replace rope_interleave {MOE_KEYS}",
    implied=implied,
    read=read,
    write=write,
    tensors=tensors,
)
