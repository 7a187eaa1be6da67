"""Llama, Mistral (a window) and Qwen3 (normalised queries and keys)."""

from model.hub.errors import HubError
from model.hub.facts import attention_facts
from model.hub.family import Family
from model.hub.kin import (
    ALIASES,
    BASE,
    BIASES,
    COUNTS,
    GATED,
    HEADS,
    MISSING,
    SIZES,
    SPARE,
    read,
    tensors,
    write,
)


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
    window = None if kinds == {"full_attention"} else theirs.get("sliding_window", 4096)
    return {"attention.window": window, **read(theirs, facts)}


def write_window(facts, theirs):
    window = facts.get("attention.window")
    used = {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 0}
    return {**used, **write(facts, theirs)}


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    auto="AutoModelForCausalLM",
    init="gpt2",
    facts={**BASE, **attention_facts(without=["group"])},
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
NO_BIAS = {"bias": False, "out_bias": False}
MISTRAL = LLAMA._replace(
    model_type="mistral",
    architecture="MistralForCausalLM",
    facts={**BASE, **attention_facts(without=["group", "window"], **NO_BIAS), "ffn.bias": False},
    keys={**SIZES, **HEADS, "sliding_window": "attention.window"},
    missing={**MISSING, "sliding_window": 4096},
)
QWEN3 = LLAMA._replace(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    facts={**BASE, **attention_facts(without=["group", "window"], qk_norm="head"), "ffn.bias": False},
    keys={**SIZES, **HEADS, **BIASES},
    missing={**MISSING, "head_dim": 128},
    unread=(*COUNTS, "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    read=read_window,
    write=write_window,
)
