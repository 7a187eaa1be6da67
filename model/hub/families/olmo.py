"""OLMo: Llama with layernorm that has neither weight nor bias."""

from model.hub.families.llama import BIAS, DECODER_KEYS, HEAD_DIM, LLAMA, write

OLMO = LLAMA._replace(
    model_type="olmo",
    architecture="OlmoForCausalLM",
    spec=LLAMA.spec | {"norm.kind": "layernorm", "norm.weight": False, "norm.eps": 1e-5},
    keys=DECODER_KEYS | BIAS | {"head_dim": HEAD_DIM},
    required={"clip_qkv": None},
    write=write,
)
