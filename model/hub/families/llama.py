"""Llama's kin: what Llama, Mistral, Qwen3, NanoChat and DeepSeek share."""

from configs.errors import HubError
from model.hub.families.rope import KEYS, read_rope, write_rope
from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, PLAIN_EMBEDDING, PLAIN_HEAD, attention_spec, head_widths
from model.hub.tensors import elementwise

# fmt: off
GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh", "gelu": "geglu"}
BASE = {
    "kind": "decoder", **PLAIN_EMBEDDING, **PLAIN_HEAD, "position.kind": "rope", "block.kind": "pre",
    "norm.kind": "rmsnorm", "norm.weight": True, "norm.bias": False,
}
SIZES = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "max_position_embeddings": "context_length", "intermediate_size": "ffn.d_ff", "hidden_act": "ffn.kind",
    "rms_norm_eps": "norm.eps", "tie_word_embeddings": "head.tie_weights",
}
HEADS = {"head_dim": ("attention.head_dim", "attention.v_head_dim")}
BIASES = {"attention_bias": ("attention.bias", "attention.o_bias")}
MISSING = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "head_dim": lambda theirs: theirs["hidden_size"] // theirs["num_attention_heads"],
    "attention_bias": False, "mlp_bias": False,
}
# fmt: on
COUNTS = ("num_key_value_heads", *KEYS)
ALIASES = {"lm_head.weight": "model.embed_tokens.weight"}
SPARE = (r".*\.rotary_emb\.inv_freq",)


def read(theirs, facts):
    n_heads, shared = facts["n_heads"], theirs.get("num_key_value_heads") or facts["n_heads"]
    if n_heads % shared:
        raise HubError(
            f"config.json: num_key_value_heads is {shared}, no divisor of num_attention_heads ({n_heads})"
        )
    return {"attention.queries_per_kv": n_heads // shared, **read_rope(theirs)}


def write(facts, theirs):
    return {
        "num_key_value_heads": facts["n_heads"] // facts.get("attention.queries_per_kv", 1),
        **write_rope(facts),
    }


def tensors(facts, theirs):
    ours, layer = "stack.blocks.*", "model.layers.*"
    return {
        "model.embed_tokens": "embedding.table",
        "model.norm": "stack.final_norm",
        "lm_head": "head.map",
        f"{layer}.input_layernorm": f"{ours}.attention_norm",
        f"{layer}.self_attn.q_proj": f"{ours}.attention.query",
        f"{layer}.self_attn.k_proj": f"{ours}.attention.key",
        f"{layer}.self_attn.v_proj": f"{ours}.attention.value",
        f"{layer}.self_attn.o_proj": f"{ours}.attention.out",
        f"{layer}.self_attn.q_norm": f"{ours}.attention.query_norm",
        f"{layer}.self_attn.k_norm": f"{ours}.attention.key_norm",
        f"{layer}.post_attention_layernorm": f"{ours}.ffn_norm",
        f"{layer}.mlp.gate_proj": f"{ours}.ffn.gate",
        f"{layer}.mlp.up_proj": f"{ours}.ffn.up",
        f"{layer}.mlp.down_proj": f"{ours}.ffn.out",
    }


def read_window(theirs, facts):
    """Qwen3 may give some layers a window; here all of them have it, or none."""
    without = theirs.get("max_window_layers", 28) if theirs.get("use_sliding_window") else facts["n_layers"]
    kinds = {"full_attention"} if without > 0 else set()
    kinds |= {"sliding_attention"} if without < facts["n_layers"] else set()
    if theirs.get("use_sliding_window") and theirs.get("layer_types"):
        kinds = set(theirs["layer_types"])
    if kinds not in ({"full_attention"}, {"sliding_attention"}):
        raise HubError(
            f"config.json: layer_types is a mixture of {' and '.join(sorted(kinds))}; supported is one "
            "window for all layers, or none"
        )
    sliding_window = None if kinds == {"full_attention"} else theirs.get("sliding_window", 4096)
    return {"attention.sliding_window": sliding_window, **read(theirs, facts)}


def write_window(facts, theirs):
    sliding_window = facts.get("attention.sliding_window")
    used = {
        "use_sliding_window": sliding_window is not None,
        "sliding_window": sliding_window,
        "max_window_layers": 0,
    }
    return {**used, **write(facts, theirs)}


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    auto="AutoModelForCausalLM",
    init="gpt2",
    facts={**BASE, **attention_spec(without=["queries_per_kv"])},
    keys={**SIZES, **HEADS, **BIASES, "mlp_bias": "ffn.bias"},
    words={"hidden_act": GATED},
    missing=MISSING,
    unread=COUNTS,
    read=read,
    write=write,
    tensors=tensors,
    prefix="model.",
    aliases=ALIASES,
    spare=SPARE,
)
NO_BIAS = {"bias": False, "o_bias": False}
MISTRAL = LLAMA._replace(
    model_type="mistral",
    architecture="MistralForCausalLM",
    facts={**BASE, **attention_spec(without=["group", "sliding_window"], **NO_BIAS), "ffn.bias": False},
    keys={**SIZES, **HEADS, "sliding_window": "attention.sliding_window"},
    missing={**MISSING, "sliding_window": 4096},
)
QWEN3 = LLAMA._replace(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    facts={**BASE, **attention_spec(without=["group", "sliding_window"], qk_norm="head"), "ffn.bias": False},
    keys={**SIZES, **HEADS, **BIASES},
    missing={**MISSING, "head_dim": 128},
    unread=(*COUNTS, "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    read=read_window,
    write=write_window,
)


def nanochat_tensors(facts, theirs):
    def halves_change_places(rows):
        return rows.unflatten(0, (-1, 2, facts["attention.head_dim"] // 2)).flip(1).flatten(0, 2)

    def turning(part):
        return elementwise(f"stack.blocks.*.attention.{part}", halves_change_places, halves_change_places)

    return {t: ours for t, ours in tensors(facts, theirs).items() if "norm" not in t and "mlp" not in t} | {
        "model.layers.*.self_attn.q_proj": turning("query"),
        "model.layers.*.self_attn.k_proj": turning("key"),
        "model.layers.*.mlp.fc1": "stack.blocks.*.ffn.up",
        "model.layers.*.mlp.fc2": "stack.blocks.*.ffn.out",
    }


def read_all(theirs, facts):
    return head_widths(facts, "attention") | read(theirs, facts)


NANOCHAT = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    auto="AutoModelForCausalLM",
    init="modern",
    facts={key: fact for key, fact in BASE.items() if key != "head.logit_softcap"}
    | attention_spec(without=["queries_per_kv"], qk_norm="head")
    | {"norm.weight": False, "embedding_norm": True, "ffn.bias": False},
    keys={**SIZES, **BIASES, "final_logit_softcapping": "head.logit_softcap"},
    words={"hidden_act": ACTIVATIONS},
    missing={**MISSING, "hidden_act": "relu2", "final_logit_softcapping": 15.0},
    unread=COUNTS,
    read=read_all,
    write=write,
    tensors=nanochat_tensors,
    prefix="model.",
    aliases=ALIASES,
)
