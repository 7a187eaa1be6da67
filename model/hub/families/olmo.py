"""OLMo: Llama with layernorm that has neither weight nor bias. OLMo 2: Llama with norms on the
outputs of sub-layers, and over all heads of queries and keys."""

from model.hub.families.llama import DECODER

OLMO = DECODER.derive(
    "olmo",
    "OlmoForCausalLM",
    without="rms_norm_eps",
    spec={"norm.kind": "layernorm", "norm.weight": False, "norm.eps": 1e-5},
    keys={"clip_qkv": ""},
    values={"clip_qkv": {None: None}},  # few texts have values that are clipped
)
NAMES = DECODER.names.replace("post_attention_layernorm", "post_feedforward_layernorm")
NAMES = NAMES.replace("input_layernorm", "post_attention_layernorm")
OLMO2 = DECODER.derive(
    "olmo2",
    "Olmo2ForCausalLM",
    spec={"block.kind": "olmo2", "attention.qk_norm": "full"},
    names=NAMES.replace("query_norm", "query_norm.norm").replace("key_norm", "key_norm.norm"),
)
