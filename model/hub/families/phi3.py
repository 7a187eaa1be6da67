"""Phi-3: Llama with query, key and value in one matrix, gate and up in another, and rope on a part
of each head."""

from configs.errors import HubError
from model.hub.families.llama import DECODER, NAMES, SLIDING_WINDOW
from model.hub.families.rope import read_rope, rope_parameters
from model.hub.family import HFConfig
from model.hub.spec import Spec
from model.hub.tensors import QKV, Table, packed


def rules(spec: Spec, hf_config: HFConfig) -> Table:
    query = spec["n_heads"] * spec["attention.head_dim"]
    key = query // spec["attention.queries_per_kv"]
    return {
        "model.layers.*.self_attn.qkv_proj": packed(QKV, [query, key, key]),
        "model.layers.*.mlp.gate_up_proj": packed(("ffn.gate", "ffn.up")),
    }


def read_phi3(hf_config: HFConfig, spec: Spec) -> Spec:
    kind = rope_parameters(hf_config)["rope_type"]
    if kind != "default":
        raise HubError(f'rope_type is "{kind}"; only "default" is supported')
    return read_rope(hf_config, spec)


PHI3 = DECODER.derive(
    "phi3",
    "Phi3ForCausalLM",
    without="attention_bias",
    spec={"position.rotary_fraction": 1.0},
    keys=SLIDING_WINDOW,
    defaults={"rms_norm_eps": 1e-5},
    required={"attention_bias": False, "mlp_bias": False, "lm_head_bias": False},
    ignored=f"{DECODER.ignored} resid_pdrop original_max_position_embeddings",
    names=NAMES,
    rules=rules,
    read_position=read_phi3,
)
