"""Phi-3: Llama with query, key and value in one matrix, gate and up in another, and rope on a part
of each head."""

from typing import Any

from model.hub.families.layers import SIZE
from model.hub.families.llama import DECODER, NAMES
from model.hub.spec import Spec
from model.hub.tensors import QKV, Table, packed


def rules(spec: Spec, config: Any) -> Table:
    query = spec["n_heads"] * spec["attention.head_dim"]
    key = query // spec["attention.queries_per_kv"]
    return {
        "model.layers.*.self_attn.qkv_proj": packed(QKV, [query, key, key]),
        "model.layers.*.mlp.gate_up_proj": packed(("ffn.gate", "ffn.up")),
    }


PHI3 = DECODER.derive(
    "phi3",
    "Phi3ForCausalLM",
    without="attention_bias",
    spec={"position.rotary_fraction": 1.0},
    keys={"sliding_window": SIZE},
    names=NAMES,
    rules=rules,
)
