"""StableLM: Llama with layernorm, rope on a quarter of each head, and no bias but those of query,
key and value."""

from functools import partial

from configs.registry import Positive
from model.hub.families.llama import DECODER_KEYS, LLAMA, read, write_partial
from model.hub.family import Key
from model.hub.spec import Spec

SPEC: Spec = LLAMA.spec | {"norm.kind": "layernorm", "norm.bias": True}

STABLELM = LLAMA._replace(
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    spec={name: value for name, value in SPEC.items() if name != "block.kind"},
    keys={
        **DECODER_KEYS,
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "use_qkv_bias": Key("attention.bias", bool, False),
        "use_parallel_residual": Key("block.kind", {False: "pre", True: "parallel_shared"}, False),
    },
    required={"qk_layernorm": False},
    ignored=f"{LLAMA.ignored} hidden_dropout",
    implied=lambda spec: {"head_dim": spec["d_model"] // spec["n_heads"]},
    read=partial(read, n_kv_heads=32, fraction=0.25),
    write=write_partial,
)
