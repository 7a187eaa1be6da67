"""Gemma: Llama with scaled embeddings, and norms that multiply by 1 + weight. Gemma 2 and 3 have
windows, and norms around each sub-layer; Gemma 3 a rope for layers with a window, and another."""

from configs.registry import Count, Positive, check_value
from model.hub.families.layers import FULL, WINDOW, read_layers, write_layers
from model.hub.families.llama import DECODER, GATED, check_width, own_scale, scale_of
from model.hub.families.rope import read_rope, write_rope
from model.hub.family import HFConfig, Key
from model.hub.spec import Spec
from model.hub.tensors import Table, columns

# the first files say "gelu", but mean its approximation, as hidden_activation in later ones says
TANH = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh", None: "geglu_tanh"}
ACTIVATION = Key("ffn.kind", TANH, "gelu_pytorch_tanh")


NORMS = """
model.norm                                    stack.final_norm
model.layers.*.input_layernorm                stack.blocks.*.attention_norm
model.layers.*.post_attention_layernorm       stack.blocks.*.ffn_norm
"""
MORE_NORMS = """
model.layers.*.post_attention_layernorm       stack.blocks.*.attention_added_norm
model.layers.*.pre_feedforward_layernorm      stack.blocks.*.ffn_norm
model.layers.*.post_feedforward_layernorm     stack.blocks.*.ffn_added_norm
model.layers.*.self_attn.q_norm               stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_norm               stack.blocks.*.attention.key_norm
"""


def norms(names: str) -> Table:
    return columns(names, lambda weight: weight + 1, lambda weight: weight - 1)


GEMMA = DECODER.derive(
    "gemma",
    "GemmaForCausalLM",
    spec={"embedding.scale_by_sqrt_d": True},
    keys={"hidden_act": ACTIVATION, "hidden_activation": ACTIVATION},
    defaults={"tie_word_embeddings": True, "num_key_value_heads": 16, "head_dim": 256},
    required={"use_bidirectional_attention": None},
    rules=lambda spec, hf_config: norms(NORMS),
)


def read_gemma2(hf_config: HFConfig, spec: Spec) -> Spec:
    layers = read_layers(hf_config, spec, lambda layer: layer % 2 == 0)
    return layers | read_rope(hf_config, spec)


def write_gemma2(spec: Spec, ids: HFConfig) -> HFConfig:
    check_width(spec, ids)
    return {"query_pre_attn_scalar": round(scale_of(spec) ** -2)}


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
    rules=lambda spec, hf_config: norms(NORMS + MORE_NORMS),
    # query_pre_attn_scalar is a width of heads
    read=lambda hf_config, spec: own_scale(spec, spec["attention.scale"] ** -0.5),
    write=write_gemma2,
    read_position=read_gemma2,
    write_position=lambda spec, ids: write_rope(spec, ids) | write_layers(spec),
)
THETAS = {FULL: "rope_theta", WINDOW: "rope_local_base_freq"}


def read_gemma3(hf_config: HFConfig, spec: Spec) -> Spec:
    every = check_value("sliding_window_pattern", hf_config["sliding_window_pattern"], Count)
    return read_layers(hf_config, spec, lambda layer: (layer + 1) % every, thetas=THETAS)


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
    read_position=read_gemma3,
    write_position=lambda spec, ids: write_rope(spec, ids) | write_layers(spec, thetas=THETAS),
)
