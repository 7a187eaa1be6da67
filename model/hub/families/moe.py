"""Mixtral and Qwen3-MoE: Llama and Qwen3, with a mixture of experts in every layer."""

from typing import Any

import torch

from model.hub.families.layers import SIZE
from model.hub.families.llama import DECODER
from model.hub.family import Keys
from model.hub.spec import Spec
from model.hub.tensors import TensorRule

EXPERTS = """
model.layers.*.mlp.gate                           stack.blocks.*.ffn.router
model.layers.*.mlp.experts.down_proj              stack.blocks.*.ffn.experts.out.weight
"""
GATE_AND_UP = TensorRule(
    ("stack.blocks.*.ffn.experts.gate.weight", "stack.blocks.*.ffn.experts.up.weight"),
    lambda weight: list(weight.chunk(2, 1)),
    lambda parts: torch.cat(parts, 1),
)


def read(config: Any, spec: Spec) -> Spec:
    """The loss of transformers has the balance of experts only if it returns their logits."""
    balance = config.router_aux_loss_coef if config.output_router_logits else 0.0
    return {"ffn.balance_loss": balance}


def write(spec: Spec, special: Keys) -> Keys:
    balance = spec["ffn.balance_loss"]
    return {"router_aux_loss_coef": balance, "output_router_logits": balance > 0}


MIXTRAL = DECODER.derive(
    "mixtral",
    "MixtralForCausalLM",
    without="attention_bias ffn.bias",
    spec={"ffn.kind": "moe", "ffn.n_shared": 0},
    keys={
        "intermediate_size": "ffn.expert.d_ff",
        "hidden_act": "ffn.expert.kind",
        "num_local_experts": "ffn.n_experts",
        "num_experts_per_tok": "ffn.top_k",
        "sliding_window": SIZE,
    },
    names=DECODER.names + EXPERTS,
    rules=lambda spec, config: {"model.layers.*.mlp.experts.gate_up_proj": GATE_AND_UP},
    read=read,
    write=write,
)


def write_qwen3_moe(spec: Spec, special: Keys) -> Keys:
    """The weight of a single expert is its probability here, and those of several add up to 1."""
    keys = {
        "norm_topk_prob": spec["ffn.top_k"] > 1,
        "use_sliding_window": spec.get(SIZE) is not None,
    }
    return keys | write(spec, special)


QWEN3_MOE = MIXTRAL.derive(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    without="intermediate_size num_local_experts",
    spec={"attention.qk_norm": "head"},
    keys={
        "attention_bias": "attention.bias attention.o_bias",
        "moe_intermediate_size": "ffn.expert.d_ff",
        "num_experts": "ffn.n_experts",
    },
    write=write_qwen3_moe,
)
