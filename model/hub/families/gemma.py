"""Gemma: Llama with scaled embeddings, and norms that multiply by 1 + weight. Gemma 2 and 3 have
windows, and norms around each sub-layer; Gemma 3 a rope for layers with a window, and another."""

from configs.registry import Count, Positive, check_value
from model.hub.families.layers import FULL, WINDOW, read_layers, write_layers
from model.hub.families.llama import DECODER, GATED, read, read_groups, write_llama
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns, elementwise

# the first files say "gelu", but mean its approximation, as hidden_activation in later ones says
TANH = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh", None: "geglu_tanh"}
ACTIVATION = Key("ffn.kind", TANH, "gelu_pytorch_tanh")


def norms_less_one(names: str) -> Table:
    return {
        hf_name: elementwise(rule.names[0], lambda weight: weight + 1, lambda weight: weight - 1)
        for hf_name, rule in columns(names).items()
        if "norm" in hf_name
    }


GEMMA = DECODER.derive(
    "gemma",
    "GemmaForCausalLM",
    spec={"embedding.scale_by_sqrt_d": True},
    keys={"hidden_act": ACTIVATION, "hidden_activation": ACTIVATION},
    defaults={"tie_word_embeddings": True, "num_key_value_heads": 16, "head_dim": 256},
    required={"use_bidirectional_attention": None},
    rules=lambda spec, hf_config: norms_less_one(DECODER.names),
)
NAMES = f"""{DECODER.names}
model.layers.*.post_attention_layernorm       stack.blocks.*.attention_added_norm
model.layers.*.pre_feedforward_layernorm      stack.blocks.*.ffn_norm
model.layers.*.post_feedforward_layernorm     stack.blocks.*.ffn_added_norm
"""


def read_scale(spec: Spec) -> Spec:
    """That of the scores, from query_pre_attn_scalar."""
    width = spec["attention.scale"]
    return {"attention.scale": None if width == spec["attention.head_dim"] else width**-0.5}


def read_gemma2(hf_config: HFConfig, spec: Spec) -> Spec:
    layers = read_layers(hf_config, spec, lambda layer: layer % 2 == 0)
    return layers | read(hf_config, spec) | read_scale(spec)


def write_gemma2(spec: Spec, ids: HFConfig) -> HFConfig:
    scale = spec.get("attention.scale")
    width = round(scale**-2) if scale else spec["attention.head_dim"]
    return {"query_pre_attn_scalar": width, **write_layers(spec), **write_llama(spec, ids)}


GEMMA2 = GEMMA.derive(
    "gemma2",
    "Gemma2ForCausalLM",
    without="hidden_act use_bidirectional_attention",
    spec={"block.kind": "sandwich"},
    keys={
        "hidden_activation": Key("ffn.kind", GATED, "gelu_pytorch_tanh"),
        "query_pre_attn_scalar": Key("attention.scale", Count, 256),
        "attn_logit_softcapping": Key("attention.logit_softcap", Positive | None, 50.0),
        "final_logit_softcapping": Key("head.logit_softcap", Positive | None, 30.0),
        "use_bidirectional_attention": Key("prefix_lm", {None: False, False: False}, None),
    },
    defaults={"num_key_value_heads": 4, "sliding_window": 4096},
    ignored=f"{DECODER.ignored} layer_types hidden_act sliding_window_size cache_implementation",
    names=NAMES,
    rules=lambda spec, hf_config: norms_less_one(NAMES),
    read=read_gemma2,
    write=write_gemma2,
)
THETAS = {FULL: "rope_theta", WINDOW: "rope_local_base_freq"}


def read_gemma3(hf_config: HFConfig, spec: Spec) -> Spec:
    every = check_value("sliding_window_pattern", hf_config["sliding_window_pattern"], Count)
    layers = read_layers(hf_config, spec, lambda layer: (layer + 1) % every, thetas=THETAS)
    return layers | read_groups(spec) | read_scale(spec)


def write_gemma3(spec: Spec, ids: HFConfig) -> HFConfig:
    return write_gemma2(spec, ids) | write_layers(spec, thetas=THETAS)


GEMMA3 = GEMMA2.derive(
    "gemma3_text",
    "Gemma3ForCausalLM",
    without="attn_logit_softcapping",
    spec={"attention.qk_norm": "head"},
    keys={"use_bidirectional_attention": Key("prefix_lm", {False: False, None: False}, False)},
    defaults={
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    required={"attn_logit_softcapping": None},  # without effect in transformers
    ignored=f"{GEMMA2.ignored} _sliding_window_pattern",
    read=read_gemma3,
    write=write_gemma3,
)
