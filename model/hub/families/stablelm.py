"""StableLM: Llama with layernorm, rope on a quarter of each head, and no bias but those of query,
key and value."""

from model.hub.families.llama import DECODER

STABLELM = DECODER.derive(
    "stablelm",
    "StableLmForCausalLM",
    without="rms_norm_eps attention_bias head_dim block.kind",
    spec={"norm.kind": "layernorm", "norm.bias": True, "position.rotary_fraction": 0.25},
    keys={
        "layer_norm_eps": "norm.eps",
        "use_qkv_bias": "attention.bias",
        "use_parallel_residual": "block.kind",
    },
    values={"use_parallel_residual": {False: "pre", True: "parallel_shared"}},
)
