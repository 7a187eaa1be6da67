"""Mixtral and Qwen3-MoE: Llama and Qwen3, with a mixture of experts in every layer."""

from configs.errors import HubError
from configs.registry import Count, NonNegative, Positive, check_value
from model.hub.families.llama import (
    BIAS,
    GATED,
    HEAD_DIM,
    LLAMA,
    LLAMA_KEYS,
    NAMES,
    read,
    write,
)
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns, row


def moe_tensors(spec: Spec, node: str, gate: str, up: str, out: str) -> Table:
    """Each expert's matrices are tensors of their own, and rows of a stack here."""
    hf_node, ffn = f"model.layers.*.{node}", "stack.blocks.*.ffn"
    table = columns(f"{NAMES} {hf_node}.gate {ffn}.router")
    for ours, name in (("gate", gate), ("up", up), ("out", out)):
        for i in range(spec["ffn.n_experts"]):
            table[f"{hf_node}.experts.{i}.{name}"] = row(i, f"{ffn}.experts.{ours}")
    return table


MOE_SPEC = LLAMA.spec | {"ffn.kind": "moe", "ffn.n_shared": 0}
del MOE_SPEC["ffn.bias"]
MOE_KEYS = LLAMA_KEYS | {
    "hidden_act": Key("ffn.expert.kind", GATED, "silu"),
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": Key("ffn.top_k"),
    "router_aux_loss_coef": Key("ffn.balance_loss", NonNegative, 0.001),
}
del MOE_KEYS["intermediate_size"]
IGNORED = f"{LLAMA.ignored} output_router_logits"


def read_mixtral(hf_config: HFConfig, spec: Spec) -> Spec:
    if spec["ffn.top_k"] == 1:
        reason = "here the weight of a single expert is its probability, and not 1"
        raise HubError(f"num_experts_per_tok is 1; expected 2 or more: {reason}")
    return read(hf_config, spec, n_kv_heads=8, default_theta=1e6)


MIXTRAL = LLAMA._replace(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    spec=MOE_SPEC,
    keys={
        **MOE_KEYS,
        "intermediate_size": Key("ffn.expert.d_ff"),
        "num_local_experts": Key("ffn.n_experts"),
        "rms_norm_eps": Key("norm.eps", Positive, 1e-5),
        "sliding_window": Key("attention.sliding_window", Count | None, None),
    },
    ignored=f"{IGNORED} router_jitter_noise",
    read=read_mixtral,
    write=write,
    tensors=lambda spec, hf_config: moe_tensors(spec, "block_sparse_moe", "w1", "w3", "w2"),
)


def read_qwen3_moe(hf_config: HFConfig, spec: Spec) -> Spec:
    """The number of experts has an older and a newer name."""
    if hf_config.get("mlp_only_layers") or hf_config.get("decoder_sparse_step", 1) != 1:
        raise HubError("mlp_only_layers or decoder_sparse_step asks for layers without experts")
    top_k = spec["ffn.top_k"]
    if hf_config.get("norm_topk_prob", False) != (top_k > 1):
        expected = "true" if top_k > 1 else "false"
        raise HubError(f"norm_topk_prob must be {expected} with num_experts_per_tok={top_k}")
    n_experts = hf_config.get("num_local_experts", hf_config.get("num_experts"))
    if hf_config.get("num_experts", n_experts) != n_experts:
        raise HubError("num_experts and num_local_experts differ; remove one")
    has_window = hf_config.get("use_sliding_window", False)
    return {
        "ffn.n_experts": check_value("num_experts", n_experts, Count),
        "attention.sliding_window": hf_config.get("sliding_window", 4096) if has_window else None,
        **read(hf_config, spec, n_kv_heads=4),
    }


def write_qwen3_moe(spec: Spec, ids: HFConfig) -> HFConfig:
    window = spec.get("attention.sliding_window")
    keys = {
        "num_experts": spec["ffn.n_experts"],
        "norm_topk_prob": spec["ffn.top_k"] > 1,
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }
    return keys | write(spec, ids)


QWEN3_MOE = LLAMA._replace(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    spec=MOE_SPEC | {"attention.qk_norm": "head"},
    keys=MOE_KEYS | BIAS | {"moe_intermediate_size": Key("ffn.expert.d_ff", Count, 768)},
    ignored=f"{IGNORED} intermediate_size num_experts num_local_experts norm_topk_prob "
    "mlp_only_layers decoder_sparse_step use_sliding_window sliding_window max_window_layers",
    read=read_qwen3_moe,
    write=write_qwen3_moe,
    tensors=lambda spec, hf_config: moe_tensors(spec, "mlp", "gate_proj", "up_proj", "down_proj"),
)
