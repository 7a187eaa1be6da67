"""Phi-3: Llama with query, key and value in one matrix, gate and up in another, and rope on a part
of each head."""

import json

from configs.errors import HubError
from configs.registry import Count, Positive
from model.hub.families.llama import HEAD_DIM, LLAMA, LLAMA_KEYS, NAMES, read, write_partial
from model.hub.families.rope import rope_parameters
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import QKV, Table, columns, packed


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    layer = "model.layers.*"
    query = spec["n_heads"] * spec["attention.head_dim"]
    key = query // spec["attention.queries_per_kv"]
    table = columns(NAMES)
    for part in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up"):
        del table[f"{layer}.{part}_proj"]
    return table | {
        f"{layer}.self_attn.qkv_proj": packed(QKV, [query, key, key]),
        f"{layer}.mlp.gate_up_proj": packed(("ffn.gate", "ffn.up")),
    }


def read_phi3(hf_config: HFConfig, spec: Spec) -> Spec:
    kind = rope_parameters(hf_config)["rope_type"]
    if kind != "default":
        raise HubError(f'rope_type is {json.dumps(kind)}; only "default" is supported')
    return read(hf_config, spec, fraction=1.0)


PHI3 = LLAMA._replace(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    keys={
        **LLAMA_KEYS,
        "rms_norm_eps": Key("norm.eps", Positive, 1e-5),
        "head_dim": HEAD_DIM,
        "sliding_window": Key("attention.sliding_window", Count | None, None),
    },
    required={"attention_bias": False, "mlp_bias": False, "lm_head_bias": False},
    ignored=f"{LLAMA.ignored} resid_pdrop original_max_position_embeddings",
    read=read_phi3,
    write=write_partial,
    tensors=tensors,
)
