"""Gemma 2 and 3: windows, norms around each sub-layer whose weights are stored less 1, scaled
embeddings; Gemma 3 has a rope for layers with a window, and another."""

from configs.registry import Count, Positive, check_value
from model.hub.families.gemma import norms_less_one
from model.hub.families.layers import (
    FULL,
    WINDOW,
    read_ropes,
    read_types,
    read_windows,
    write_ropes,
    write_windows,
)
from model.hub.families.llama import BIAS, GATED, LLAMA, NAMES, read, read_groups, write_llama
from model.hub.family import SIZES, HFConfig, Key
from model.hub.spec import Spec, merge_layers
from model.hub.tensors import columns

IGNORED = "hidden_act sliding_window_size cache_implementation"
OWN_NAMES = """
model.layers.*.post_attention_layernorm       stack.blocks.*.attention_added_norm
model.layers.*.pre_feedforward_layernorm      stack.blocks.*.ffn_norm
model.layers.*.post_feedforward_layernorm     stack.blocks.*.ffn_added_norm
"""


def read_scale(hf_config: HFConfig, spec: Spec) -> Spec:
    """That of the scores."""
    width = check_value("query_pre_attn_scalar", hf_config.get("query_pre_attn_scalar", 256), Count)
    return {"attention.scale": None if width == spec["attention.head_dim"] else width**-0.5}


def write_scale(spec: Spec) -> HFConfig:
    scale = spec.get("attention.scale")
    return {"query_pre_attn_scalar": round(scale**-2) if scale else spec["attention.head_dim"]}


def read_gemma2(hf_config: HFConfig, spec: Spec) -> Spec:
    hf_config = {"sliding_window": 4096} | hf_config
    types = read_types(hf_config, spec, lambda layer: layer % 2 == 0)
    windows = merge_layers(read_windows(hf_config, types))
    return windows | read(hf_config, spec, n_kv_heads=4) | read_scale(hf_config, spec)


def write_gemma2(spec: Spec, ids: HFConfig) -> HFConfig:
    types, window = write_windows(spec)
    keys = {"layer_types": types, "sliding_window": window or 4096}
    return keys | write_llama(spec, ids) | write_scale(spec)


GEMMA2 = LLAMA._replace(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    spec=LLAMA.spec | {"block.kind": "sandwich", "embedding.scale_by_sqrt_d": True},
    keys={
        **SIZES,
        **BIAS,
        "hidden_activation": Key("ffn.kind", GATED, "gelu_pytorch_tanh"),
        "head_dim": Key("attention.head_dim attention.v_head_dim", Count, 256),
        "rms_norm_eps": Key("norm.eps", Positive, 1e-6),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "attn_logit_softcapping": Key("attention.logit_softcap", Positive | None, 50.0),
        "final_logit_softcapping": Key("head.logit_softcap", Positive | None, 30.0),
        "use_bidirectional_attention": Key("prefix_lm", {None: False, False: False}, None),
    },
    ignored=f"{LLAMA.ignored} layer_types sliding_window query_pre_attn_scalar {IGNORED}",
    read=read_gemma2,
    write=write_gemma2,
    tensors=lambda spec, hf_config: norms_less_one(columns(NAMES) | columns(OWN_NAMES)),
)
THETAS = {FULL: ("rope_theta", 1e6), WINDOW: ("rope_local_base_freq", 1e4)}


def read_gemma3(hf_config: HFConfig, spec: Spec) -> Spec:
    """A rope_scaling is that of the layers without a window."""
    hf_config = {"sliding_window": 4096} | hf_config
    every = check_value("sliding_window_pattern", hf_config.get("sliding_window_pattern", 6), Count)
    types = read_types(hf_config, spec, lambda layer: (layer + 1) % every)
    ropes = read_ropes(hf_config, types, THETAS)
    layers = merge_layers(list(map(dict.__or__, read_windows(hf_config, types), ropes)))
    return layers | read_groups(hf_config, spec, default=4) | read_scale(hf_config, spec)


def write_gemma3(spec: Spec, ids: HFConfig) -> HFConfig:
    return write_gemma2(spec, ids) | write_ropes(spec, THETAS)


GEMMA3 = GEMMA2._replace(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    spec=GEMMA2.spec | {"attention.qk_norm": "head"},
    keys={
        **{name: key for name, key in GEMMA2.keys.items() if name != "attn_logit_softcapping"},
        "final_logit_softcapping": Key("head.logit_softcap", Positive | None, None),
        "use_bidirectional_attention": Key("prefix_lm", {False: False, None: False}, False),
    },
    required={"attn_logit_softcapping": None},  # without effect in transformers
    ignored=f"{GEMMA2.ignored} rope_local_base_freq sliding_window_pattern _sliding_window_pattern",
    read=read_gemma3,
    write=write_gemma3,
)
