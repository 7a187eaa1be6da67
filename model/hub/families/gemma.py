"""Gemma: Llama with embeddings scaled by sqrt(d), and norms that multiply by 1 + weight."""

from functools import partial

from configs.registry import Count
from model.hub.families.llama import BIAS, LLAMA, LLAMA_KEYS, NAMES, read, write
from model.hub.family import Key
from model.hub.tensors import Table, columns, elementwise

# the first files say "gelu", but mean its approximation, as hidden_activation in later ones says
TANH = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh", None: "geglu_tanh"}


def norms_less_one(table: Table) -> Table:
    for hf_name, rule in table.items():
        if "norm" in hf_name:
            table[hf_name] = elementwise(
                rule.names[0], lambda weight: weight + 1, lambda weight: weight - 1
            )
    return table


GEMMA = LLAMA._replace(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    spec=LLAMA.spec | {"embedding.scale_by_sqrt_d": True},
    keys={
        **LLAMA_KEYS,
        **BIAS,
        "hidden_act": Key("ffn.kind", TANH, "gelu_pytorch_tanh"),
        "hidden_activation": Key("ffn.kind", TANH, "gelu_pytorch_tanh"),
        "head_dim": Key("attention.head_dim attention.v_head_dim", Count, 256),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
    },
    required={"use_bidirectional_attention": None},
    read=partial(read, n_kv_heads=16),
    write=write,
    tensors=lambda spec, hf_config: norms_less_one(columns(NAMES)),
)
