"""Mixtral and Qwen3-MoE: Llama and Qwen3, with a mixture of experts in every layer."""

from typing import Annotated

from configs.registry import Bounds, Count, NonNegative
from model.hub.families.llama import DECODER, GATED, SLIDING_WINDOW, qwen_window
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, row

Several = Annotated[int, Bounds(least=2)]
MOE = DECODER.derive(
    "",
    "",
    without="intermediate_size ffn.bias",
    spec={"ffn.kind": "moe", "ffn.n_shared": 0},
    keys={
        "hidden_act": Key("ffn.expert.kind", GATED, "silu"),
        "num_experts_per_tok": Key("ffn.top_k"),
        "router_aux_loss_coef": Key("ffn.balance_loss", NonNegative, 0.001),
    },
    ignored=f"{DECODER.ignored} output_router_logits router_jitter_noise",
)


MIXTRAL_ROUTER = """
model.layers.*.block_sparse_moe.gate              stack.blocks.*.ffn.router
"""
# of expert N
MIXTRAL_EXPERT = """
model.layers.*.block_sparse_moe.experts.N.w1      stack.blocks.*.ffn.experts.gate
model.layers.*.block_sparse_moe.experts.N.w3      stack.blocks.*.ffn.experts.up
model.layers.*.block_sparse_moe.experts.N.w2      stack.blocks.*.ffn.experts.out
"""
QWEN3_ROUTER = """
model.layers.*.mlp.gate                           stack.blocks.*.ffn.router
"""
QWEN3_EXPERT = """
model.layers.*.mlp.experts.N.gate_proj            stack.blocks.*.ffn.experts.gate
model.layers.*.mlp.experts.N.up_proj              stack.blocks.*.ffn.experts.up
model.layers.*.mlp.experts.N.down_proj            stack.blocks.*.ffn.experts.out
"""


def experts(spec: Spec, text: str) -> Table:
    """The matrices of an expert are tensors of their own in the file, and rows here."""
    table: Table = {}
    for i in range(spec["ffn.n_experts"]):
        table |= row(i, text.replace("N", str(i)))
    return table


MIXTRAL = MOE.derive(
    "mixtral",
    "MixtralForCausalLM",
    without="attention_bias",
    spec={"position.rope_theta": 1e6},
    keys={
        "intermediate_size": Key("ffn.expert.d_ff"),
        "num_local_experts": Key("ffn.n_experts"),
        # the weight of a single expert is its probability here, and 1 there
        "num_experts_per_tok": Key("ffn.top_k", Several),
        **SLIDING_WINDOW,
    },
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8},
    names=DECODER.names + MIXTRAL_ROUTER,
    rules=lambda spec, hf_config: experts(spec, MIXTRAL_EXPERT),
)


def write_qwen3_moe(spec: Spec, ids: HFConfig) -> HFConfig:
    window = spec.get("attention.sliding_window")
    return {
        "norm_topk_prob": spec["ffn.top_k"] > 1,
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


QWEN3_MOE = MOE.derive(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    spec={"attention.qk_norm": "head"},
    keys={
        "moe_intermediate_size": Key("ffn.expert.d_ff", Count, 768),
        "num_experts": Key("ffn.n_experts", older="num_local_experts"),
    },
    defaults={
        "num_key_value_heads": 4,
        "norm_topk_prob": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
    },
    required={"mlp_only_layers": [], "decoder_sparse_step": 1},
    ignored=f"{MOE.ignored} intermediate_size max_window_layers",
    # the weight of a single expert is its probability here, and those of several add up to 1
    implied=lambda spec: {**MOE.implied(spec), "norm_topk_prob": spec["ffn.top_k"] > 1},
    read=lambda hf_config, spec: {"attention.sliding_window": qwen_window(hf_config)},
    write=write_qwen3_moe,
    names=DECODER.names + QWEN3_ROUTER,
    rules=lambda spec, hf_config: experts(spec, QWEN3_EXPERT),
)
