"""OLMo 2: Llama with norms on the outputs of sub-layers, and over all heads of queries and keys."""

from configs.registry import Positive
from model.hub.families.llama import BIAS, HEAD_DIM, LLAMA, LLAMA_KEYS, NAMES, write
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    names = NAMES.replace("post_attention_layernorm", "post_feedforward_layernorm")
    names = names.replace("input_layernorm", "post_attention_layernorm")
    return columns(
        names.replace("query_norm", "query_norm.norm").replace("key_norm", "key_norm.norm")
    )


OLMO2 = LLAMA._replace(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    spec=LLAMA.spec | {"block.kind": "olmo2", "attention.qk_norm": "full"},
    keys={
        **LLAMA_KEYS,
        **BIAS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": Key("norm.eps", Positive, 1e-5),
    },
    write=write,
    tensors=tensors,
)
