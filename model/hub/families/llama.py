"""Llama, and what Mistral, Qwen and NanoChat change in it."""

import torch

from configs.errors import HubError
from configs.registry import Count, Natural, Positive, check_value
from model.hub.families.layers import FULL, read_layers, write_layers
from model.hub.families.rope import KEYS, QUERY_KEY, read_rope, reordered, write_rope
from model.hub.family import GROUPS, SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, RMSNORM_NO_BIAS, Spec

GATED = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}
GATES = {"gelu": "geglu", "gelu_tanh": "geglu_tanh"}
GATED |= {name: GATES[kind] for name, kind in ACTIVATIONS.items() if kind in GATES}


def own_scale(spec: Spec, scale: float) -> Spec:
    """Of attention scores; null is the usual one."""
    usual = spec["attention.head_dim"] ** -0.5
    return {"attention.scale": None if scale == usual else scale}


def scale_of(spec: Spec) -> float:
    return spec.get("attention.scale") or spec["attention.head_dim"] ** -0.5


SLIDING_WINDOW = {"sliding_window": Key("attention.sliding_window", Count | None, None)}
MLP_BIAS = {"mlp_bias": Key("ffn.bias", bool, False)}
NAMES = """
model.embed_tokens                            embedding.table
model.norm                                    stack.final_norm
lm_head                                       head.map
model.layers.*.input_layernorm                stack.blocks.*.attention_norm
model.layers.*.self_attn.o_proj               stack.blocks.*.attention.out
model.layers.*.post_attention_layernorm       stack.blocks.*.ffn_norm
model.layers.*.mlp.down_proj                  stack.blocks.*.ffn.out
"""
VALUE_NAMES = """
model.layers.*.self_attn.v_proj               stack.blocks.*.attention.value
model.layers.*.self_attn.q_norm               stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_norm               stack.blocks.*.attention.key_norm
"""
GATE_NAMES = """
model.layers.*.mlp.gate_proj                  stack.blocks.*.ffn.gate
model.layers.*.mlp.up_proj                    stack.blocks.*.ffn.up
"""
# what Llama and its kin have in common
DECODER = Family(
    model_type="",
    architecture="",
    spec=BASE | RMSNORM_NO_BIAS | {"kind": "decoder", "position.kind": "rope"},
    keys={
        **SIZES,
        "hidden_act": Key("ffn.kind", GATED, "silu"),
        "rms_norm_eps": Key("norm.eps", Positive, 1e-6),
        "tie_word_embeddings": Key("head.tie_weights", bool, False),
        "num_key_value_heads": Key(GROUPS, Count | None, None),
        "head_dim": Key("attention.head_dim attention.v_head_dim", Count | None, None),
        "attention_bias": Key("attention.bias attention.o_bias", bool, False),
    },
    names=NAMES + QUERY_KEY + VALUE_NAMES + GATE_NAMES,
    ignored=f"max_sequence_length {KEYS}",
    implied=lambda spec: {"layer_types": write_layers(spec)["layer_types"]},
    read_position=read_rope,
    write_position=write_rope,
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    optional=r".*\.rotary_emb\.inv_freq",
)


def check_width(spec: Spec, ids: HFConfig) -> HFConfig:
    """Most other classes take any."""
    if spec["d_model"] % spec["n_heads"]:
        raise HubError("model.d_model must be a multiple of model.n_heads")
    return {}


LLAMA = DECODER.derive(
    "llama",
    "LlamaForCausalLM",
    keys=MLP_BIAS,
    defaults={"max_position_embeddings": 2048},
    write=check_width,
)
MISTRAL = DECODER.derive(
    "mistral",
    "MistralForCausalLM",
    without="attention_bias",
    keys=SLIDING_WINDOW,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    required={"attention_bias": False, "mlp_bias": False},
)


def qwen_window(hf_config: HFConfig) -> int | None:
    return hf_config["sliding_window"] if hf_config["use_sliding_window"] else None


def read_qwen3(hf_config: HFConfig, spec: Spec) -> Spec:
    """Some layers may have a window."""
    window = qwen_window(hf_config)
    n_full = check_value("max_window_layers", hf_config["max_window_layers"], Natural)
    return read_layers(
        hf_config | {"sliding_window": window}, spec, lambda layer: window and layer >= n_full
    )


def write_qwen3(spec: Spec, ids: HFConfig) -> HFConfig:
    layers = write_layers(spec)
    layers["use_sliding_window"] = "sliding_window" in layers
    layers["max_window_layers"] = layers["layer_types"].count(FULL)
    return layers


QWEN3 = DECODER.derive(
    "qwen3",
    "Qwen3ForCausalLM",
    spec={"attention.qk_norm": "head"},
    defaults={
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    ignored=f"{DECODER.ignored} layer_types",
    read=read_qwen3,
    write=write_qwen3,
)
QWEN2 = QWEN3.derive(
    "qwen2",
    "Qwen2ForCausalLM",
    without="attention_bias",
    spec={"attention.qk_norm": "none", "attention.bias": True},
    defaults={"head_dim": None},
    required={"use_mrope": False},
)


def read_nanochat(hf_config: HFConfig, spec: Spec) -> Spec:
    """NanoChat normalizes queries and keys after rope, not before it."""
    options = read_rope(hf_config, spec)
    factor = options.get("position.scaling.attention_factor")
    if options["position.scaling.kind"] == "yarn" and factor != 1.0:
        raise HubError("yarn needs attention_factor=1: the norm after rope cancels any other")
    return options


NANOCHAT = DECODER.derive(
    "nanochat",
    "NanoChatForCausalLM",
    without="head_dim",
    spec={"attention.qk_norm": "head", "norm.weight": False, "embedding_norm": True},
    keys={
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "relu2"),
        "final_logit_softcapping": Key("head.logit_softcap", Positive | None, 15.0),
    },
    names=DECODER.names.replace("up_proj", "fc1").replace("down_proj", "fc2"),
    read_position=read_nanochat,
    # it turns by -angle: with the two channels of each pair swapped, that is our +angle
    rules=lambda spec, hf_config: reordered(
        QUERY_KEY, torch.arange(spec["attention.head_dim"]).roll(spec["attention.head_dim"] // 2)
    ),
)
