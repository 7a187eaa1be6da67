"""StableLM: Llama with layernorm, rope on a quarter of each head, and no bias but those of query,
key and value."""

from configs.registry import Positive
from model.hub.families.llama import DECODER
from model.hub.family import Key

STABLELM = DECODER.derive(
    "stablelm",
    "StableLmForCausalLM",
    without="rms_norm_eps attention_bias head_dim block.kind",
    spec={"norm.kind": "layernorm", "norm.bias": True, "position.rotary_fraction": 0.25},
    keys={
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "use_qkv_bias": Key("attention.bias", bool, False),
        "use_parallel_residual": Key("block.kind", {False: "pre", True: "parallel_shared"}, False),
    },
    defaults={"num_key_value_heads": 32},
    required={"qk_layernorm": False},
    ignored=f"{DECODER.ignored} hidden_dropout",
    implied=lambda spec: {"head_dim": spec["d_model"] // spec["n_heads"]},
)
