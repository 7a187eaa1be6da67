"""SmolLM3: Llama without positions in every fourth layer."""

from configs.errors import HubError
from configs.registry import Count, check_value
from model.hub.families.layers import split_layers
from model.hub.families.llama import DECODER, MLP_BIAS
from model.hub.families.rope import read_rope
from model.hub.family import HFConfig
from model.hub.spec import Spec, merge_layers


def read_smollm3(hf_config: HFConfig, spec: Spec) -> Spec:
    n_layers, every = spec["n_layers"], hf_config["no_rope_layer_interval"]
    check_value("no_rope_layer_interval", every, Count)
    flags = hf_config.get("no_rope_layers")  # 0 where there are no positions
    if flags is None:
        flags = [(layer + 1) % every for layer in range(n_layers)]
    if not isinstance(flags, list) or len(flags) < n_layers:
        raise HubError(f"no_rope_layers is {flags!r:.70}; expected {n_layers} of 0 and 1")

    rope = {"position.kind": "rope", **read_rope(hf_config, {"position.rope_theta": 2e6})}
    layers = [rope if flag else {"position.kind": "none"} for flag in flags[:n_layers]]
    return merge_layers(layers)


def write_smollm3(spec: Spec, ids: HFConfig) -> HFConfig:
    flags = [int(layer["position.kind"] != "none") for layer in split_layers(spec)]
    return {"no_rope_layers": flags}


SMOLLM3 = DECODER.derive(
    "smollm3",
    "SmolLM3ForCausalLM",
    keys=MLP_BIAS,
    defaults={
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "no_rope_layer_interval": 4,
    },
    required={"use_sliding_window": False},
    ignored=f"{DECODER.ignored} no_rope_layers sliding_window max_window_layers",
    read_position=read_smollm3,
    write=write_smollm3,
)
