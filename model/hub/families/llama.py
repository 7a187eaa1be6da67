"""Llama, and what Mistral, Qwen and NanoChat change in it."""

from functools import partial

from torch import Tensor

from configs.errors import HubError
from configs.registry import Count, Natural, Positive, check_value
from model.hub.families.layers import FULL, read_types, read_windows, write_windows
from model.hub.families.rope import KEYS, read_rope, write_rope
from model.hub.family import SIZES, Family, HFConfig, Key
from model.hub.spec import ACTIVATIONS, BASE, RMSNORM_NO_BIAS, Spec, merge_layers
from model.hub.tensors import Table, columns, elementwise

GATED = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}
GATES = {"gelu": "geglu", "gelu_tanh": "geglu_tanh"}
GATED |= {name: GATES[kind] for name, kind in ACTIVATIONS.items() if kind in GATES}
DECODER_KEYS = SIZES | {
    "hidden_act": Key("ffn.kind", GATED, "silu"),
    "tie_word_embeddings": Key("head.tie_weights", bool, False),
}
LLAMA_KEYS = DECODER_KEYS | {"rms_norm_eps": Key("norm.eps", Positive, 1e-6)}
HEAD_DIM = Key("attention.head_dim attention.v_head_dim", Count | None, None)
BIAS = {"attention_bias": Key("attention.bias attention.o_bias", bool, False)}


def read_groups(hf_config: HFConfig, spec: Spec, default: int | None = None) -> Spec:
    """default: what a missing num_key_value_heads means; null means one for each query head."""
    n_heads = spec["n_heads"]
    given = hf_config.get("num_key_value_heads", default)
    n_kv_heads = check_value("num_key_value_heads", given, Count | None) or n_heads
    if n_heads % n_kv_heads:
        raise HubError(f"num_key_value_heads is {n_kv_heads}; expected a divisor of {n_heads}")
    return {"attention.queries_per_kv": n_heads // n_kv_heads}


def read(hf_config: HFConfig, spec: Spec, n_kv_heads: int | None = None, **rope: float) -> Spec:
    return read_groups(hf_config, spec, n_kv_heads) | read_rope(hf_config, **rope)


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    return {
        "num_key_value_heads": spec["n_heads"] // spec["attention.queries_per_kv"],
        **write_rope(spec),
    }


def write_partial(spec: Spec, ids: HFConfig) -> HFConfig:
    return write(spec, ids) | write_rope(spec, is_partial=True)


def write_llama(spec: Spec, ids: HFConfig) -> HFConfig:
    if spec["d_model"] % spec["n_heads"]:  # the others do not mind
        raise HubError("model.d_model must be a multiple of model.n_heads")
    return write(spec, ids)


NAMES = """
model.embed_tokens                            embedding.table
model.norm                                    stack.final_norm
lm_head                                       head.map
model.layers.*.input_layernorm                stack.blocks.*.attention_norm
model.layers.*.self_attn.q_proj               stack.blocks.*.attention.query
model.layers.*.self_attn.k_proj               stack.blocks.*.attention.key
model.layers.*.self_attn.v_proj               stack.blocks.*.attention.value
model.layers.*.self_attn.o_proj               stack.blocks.*.attention.out
model.layers.*.self_attn.q_norm               stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_norm               stack.blocks.*.attention.key_norm
model.layers.*.post_attention_layernorm       stack.blocks.*.ffn_norm
model.layers.*.mlp.gate_proj                  stack.blocks.*.ffn.gate
model.layers.*.mlp.up_proj                    stack.blocks.*.ffn.up
model.layers.*.mlp.down_proj                  stack.blocks.*.ffn.out
"""


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    spec=BASE | RMSNORM_NO_BIAS | {"kind": "decoder", "position.kind": "rope"},
    keys={
        **LLAMA_KEYS,
        **BIAS,
        "head_dim": HEAD_DIM,
        "mlp_bias": Key("ffn.bias", bool, False),
        "max_position_embeddings": Key("context_length", default=2048),
    },
    ignored=f"num_key_value_heads max_sequence_length {KEYS}",
    implied=lambda spec: {"layer_types": write_windows(spec)[0]},
    read=read,
    write=write_llama,
    tensors=lambda spec, hf_config: columns(NAMES),
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    optional=r".*\.rotary_emb\.inv_freq",
)
MISTRAL = LLAMA._replace(
    model_type="mistral",
    architecture="MistralForCausalLM",
    keys={
        **LLAMA_KEYS,
        "head_dim": HEAD_DIM,
        "sliding_window": Key("attention.sliding_window", Count | None, 4096),
    },
    required={"attention_bias": False, "mlp_bias": False},
    read=partial(read, n_kv_heads=8),
    write=write,
)


def read_qwen3(hf_config: HFConfig, spec: Spec) -> Spec:
    """Some layers may have a window."""
    window = hf_config.get("sliding_window", 4096) if hf_config.get("use_sliding_window") else None
    n_full = check_value("max_window_layers", hf_config.get("max_window_layers", 28), Natural)
    types = read_types(hf_config, spec, lambda layer: window and layer >= n_full)
    return merge_layers(read_windows({"sliding_window": window}, types)) | read(
        hf_config, spec, n_kv_heads=32
    )


def write_qwen3(spec: Spec, ids: HFConfig) -> HFConfig:
    types, window = write_windows(spec)
    keys = {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": types.count(FULL),
        "layer_types": types,
    }
    return keys | write(spec, ids)


QWEN3 = LLAMA._replace(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    spec=LLAMA.spec | {"attention.qk_norm": "head"},
    keys={
        **LLAMA_KEYS,
        **BIAS,
        "head_dim": Key("attention.head_dim attention.v_head_dim", Count, 128),
    },
    ignored=f"{LLAMA.ignored} use_sliding_window sliding_window max_window_layers layer_types",
    read=read_qwen3,
    write=write_qwen3,
)
QWEN2 = QWEN3._replace(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    spec=LLAMA.spec | {"attention.bias": True},
    keys=LLAMA_KEYS | {"head_dim": HEAD_DIM},
    required={"use_mrope": False},
)


def read_nanochat(hf_config: HFConfig, spec: Spec) -> Spec:
    """NanoChat normalizes queries and keys after rope, not before it."""
    options = read(hf_config, spec)
    if (
        options["position.scaling.kind"] == "yarn"
        and options.get("position.scaling.attention_factor") != 1.0
    ):
        raise HubError("yarn needs attention_factor=1: the norm after rope cancels any other")
    return options


def nanochat_tensors(spec: Spec, hf_config: HFConfig) -> Table:
    def swap_halves(rows: Tensor) -> Tensor:
        halves = rows.unflatten(0, (-1, 2, spec["attention.head_dim"] // 2))
        return halves.flip(1).flatten(0, 2)

    table = columns(NAMES.replace("up_proj", "fc1").replace("down_proj", "fc2"))
    for part in ("query", "key"):
        name = f"stack.blocks.*.attention.{part}"
        swapped = elementwise(name, swap_halves, swap_halves)
        table[f"model.layers.*.self_attn.{part[0]}_proj"] = swapped
    return table


NANOCHAT = LLAMA._replace(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    spec={
        **LLAMA.spec,
        "attention.qk_norm": "head",
        "norm.weight": False,
        "embedding_norm": True,
    },
    keys={
        **LLAMA_KEYS,
        **BIAS,
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "relu2"),
        "final_logit_softcapping": Key("head.logit_softcap", Positive | None, 15.0),
    },
    read=read_nanochat,
    write=write,
    tensors=nanochat_tensors,
)
