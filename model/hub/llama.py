"""Llama and those that followed: Mistral (a window), Qwen3 (normalised queries and keys)."""

from model.hub.facts import HubError
from model.hub.family import Family
from model.hub.gpt2 import PLAIN_EMBEDDING, PLAIN_HEAD, attention_facts
from model.hub.rope import KEYS, read_rope, write_rope

GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh", "gelu": "geglu"}
BASE = {
    "kind": "decoder",
    **PLAIN_EMBEDDING,
    **PLAIN_HEAD,
    "position.kind": "rope",
    "block.kind": "pre",
    "norm.kind": "rmsnorm",
    "norm.weight": True,
    "norm.bias": False,
}
SIZES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "context",
    "intermediate_size": "ffn.width",
    "hidden_act": "ffn.kind",
    "rms_norm_eps": "norm.eps",
    "tie_word_embeddings": "head.tied",
}
HEADS = {"head_dim": ("attention.key_width", "attention.value_width")}
BIASES = {"attention_bias": ("attention.bias", "attention.out_bias")}
MISSING = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "head_dim": lambda theirs: theirs["hidden_size"] // theirs["num_attention_heads"],
    "attention_bias": False,
    "mlp_bias": False,
}
COUNTS = ("num_key_value_heads", *KEYS)


def heads(**own):
    """The facts of self-attention that no key says, and none of those that one does."""
    facts = attention_facts("attention", **own)
    del facts["attention.group"]
    return {name: fact for name, fact in facts.items() if fact is not ...}


def read(theirs, facts):
    n_heads, shared = facts["n_heads"], theirs.get("num_key_value_heads") or facts["n_heads"]
    if n_heads % shared:
        raise HubError(
            f"config.json: num_key_value_heads is {shared}, no divisor of num_attention_heads ({n_heads})"
        )
    return {"attention.group": n_heads // shared, **read_rope(theirs)}


def write(facts, theirs):
    return {"num_key_value_heads": facts["n_heads"] // facts.get("attention.group", 1), **write_rope(facts)}


def read_window(theirs, facts):
    """Qwen3 may give some layers a window; here all of them have it, or none."""
    layers, first = facts["n_layers"], theirs.get("max_window_layers", 28)
    by_number = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    kinds = set(theirs.get("layer_types") or by_number) if theirs.get("use_sliding_window") else set()
    if len(kinds) > 1:
        raise HubError(
            "config.json: layer_types mixes layers with and without a window; one kind for all is supported"
        )
    window = theirs.get("sliding_window", 4096) if kinds == {"sliding_attention"} else None
    return {"attention.window": window, **read(theirs, facts)}


def write_window(facts, theirs):
    window = facts.get("attention.window")
    used = {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 0}
    return {**used, **write(facts, theirs)}


def tensors(facts, theirs):
    ours, layer = "stack.blocks.*", "model.layers.*"
    table = {
        "model.embed_tokens": "embedding.table",
        "model.norm": "stack.final_norm",
        "lm_head": "head.map",
        f"{layer}.input_layernorm": f"{ours}.attention_norm",
        f"{layer}.post_attention_layernorm": f"{ours}.ffn_norm",
        f"{layer}.self_attn.o_proj": f"{ours}.attention.out",
        f"{layer}.self_attn.q_norm": f"{ours}.attention.query_norm",
        f"{layer}.self_attn.k_norm": f"{ours}.attention.key_norm",
    }
    table |= {
        f"{layer}.self_attn.{part[0]}_proj": f"{ours}.attention.{part}" for part in ("query", "key", "value")
    }
    return table | {
        f"{layer}.mlp.{t}_proj": f"{ours}.ffn.{o}"
        for t, o in [("gate", "gate"), ("up", "up"), ("down", "out")]
    }


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    auto="AutoModelForCausalLM",
    init="gpt2",
    facts={**BASE, **heads()},
    keys={**SIZES, **HEADS, **BIASES, "mlp_bias": "ffn.bias"},
    words={"hidden_act": GATED},
    missing=MISSING,
    unread=COUNTS,
    read=read,
    write=write,
    tensors=tensors,
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
    spare=(r".*\.rotary_emb\.inv_freq",),
)
MISTRAL = LLAMA._replace(
    model_type="mistral",
    architecture="MistralForCausalLM",
    facts={**BASE, **heads(bias=False, out_bias=False, window=...), "ffn.bias": False},
    keys={**SIZES, **HEADS, "sliding_window": "attention.window"},
    missing={**MISSING, "sliding_window": 4096},
)
QWEN3 = LLAMA._replace(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    facts={**BASE, **heads(qk_norm="head", window=...), "ffn.bias": False},
    keys={**SIZES, **HEADS, **BIASES},
    missing={**MISSING, "head_dim": 128},
    unread=(*COUNTS, "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    read=read_window,
    write=write_window,
)
