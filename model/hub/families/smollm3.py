"""SmolLM3: Llama without positions in every fourth layer."""

from typing import Any

from model.hub.families.layers import split_layers
from model.hub.families.llama import DECODER
from model.hub.families.rope import read_rope, write_rope
from model.hub.family import Keys
from model.hub.spec import Spec, merge_layers


def read(config: Any, spec: Spec) -> Spec:
    rope = {"position.kind": "rope", **read_rope(config, spec)}
    flags = config.no_rope_layers[: spec["n_layers"]]  # 0 where there are no positions
    return merge_layers([rope if flag else {"position.kind": "none"} for flag in flags])


def write(spec: Spec) -> Keys:
    flags = [int(layer["position.kind"] != "none") for layer in split_layers(spec)]
    return {"no_rope_layers": flags} | write_rope(spec)


SMOLLM3 = DECODER.derive(
    "smollm3",
    "SmolLM3ForCausalLM",
    keys={"mlp_bias": "ffn.bias"},
    read_position=read,
    write_position=write,
)
