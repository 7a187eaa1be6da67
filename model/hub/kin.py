"""Llama's kin: what Llama, Mistral, Qwen3, NanoChat and DeepSeek share."""

from model.hub.errors import HubError
from model.hub.facts import PLAIN_EMBEDDING, PLAIN_HEAD
from model.hub.rope import KEYS, read_rope, write_rope

# fmt: off
GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh", "gelu": "geglu"}
BASE = {
    "kind": "decoder", **PLAIN_EMBEDDING, **PLAIN_HEAD, "position.kind": "rope", "block.kind": "pre",
    "norm.kind": "rmsnorm", "norm.weight": True, "norm.bias": False,
}
SIZES = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "max_position_embeddings": "context", "intermediate_size": "ffn.width", "hidden_act": "ffn.kind",
    "rms_norm_eps": "norm.eps", "tie_word_embeddings": "head.tied",
}
HEADS = {"head_dim": ("attention.key_width", "attention.value_width")}
BIASES = {"attention_bias": ("attention.bias", "attention.out_bias")}
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
    return {"attention.group": n_heads // shared, **read_rope(theirs)}


def write(facts, theirs):
    return {"num_key_value_heads": facts["n_heads"] // facts.get("attention.group", 1), **write_rope(facts)}


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
