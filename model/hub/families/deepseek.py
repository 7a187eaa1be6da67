"""DeepSeek-V3's latent attention, with dense layers: neighbours turn, not halves; a latent shares its matrix
with the rotary key, and keys share one with values."""

import torch

from configs.errors import HubError
from model.hub.families.llama import ALIASES, BASE, GATED, MISSING, SIZES, SPARE
from model.hub.families.llama import tensors as named
from model.hub.families.rope import KEYS, growth, parameters, read_rope, write_rope
from model.hub.family import Family
from model.hub.tensors import TensorRule, elementwise


def tensors(facts, theirs):
    n_heads, rotary = facts["n_heads"], facts["attention.rotary_dim"]
    plain, value, latent = (facts[f"attention.{w}_width"] for w in ("plain", "value", "latent"))
    scale, turned = sharpening(theirs), theirs.get("rope_interleave", True)

    def apart(rows):
        """Every other channel, then those between them."""
        return torch.cat([rows[..., 0::2, :], rows[..., 1::2, :]], -2) if turned else rows

    def together(rows):
        return torch.stack(rows.chunk(2, -2), -2).flatten(-3, -2) if turned else rows

    def query(change, scale):
        def changed(weight):
            still, moved = weight.unflatten(0, (n_heads, -1)).split([plain, rotary], 1)
            return torch.cat([still, change(moved)], 1).flatten(0, 1) * scale

        return changed

    def join_key_value(parts):
        return torch.cat([part.unflatten(0, (n_heads, -1)) for part in parts], 1).flatten(0, 1)

    def split_key_value(weight):
        parts = weight.unflatten(0, (n_heads, -1)).split([plain, value], 1)
        return [part.flatten(0, 1) for part in parts]

    def split_latent(weight):
        first, rows = weight.split([latent, rotary])
        return [first, apart(rows)]

    ours, layer, low = "stack.blocks.*.attention", "model.layers.*.self_attn", facts["attention.q_lora_rank"]
    whole = elementwise(
        f"{ours}.query" + (".2" if low else ""), query(apart, scale), query(together, 1 / scale)
    )
    shared = {
        t: name for t, name in named(facts, theirs).items() if not t.startswith(f"{layer}.") or "o_proj" in t
    }
    return shared | {
        f"{layer}.q_a_proj": f"{ours}.query.0",
        f"{layer}.q_a_layernorm": f"{ours}.query.1",
        f"{layer}.kv_a_layernorm": f"{ours}.latent_norm",
        f"{layer}.kv_a_proj_with_mqa": TensorRule(
            (f"{ours}.kv_down", f"{ours}.k_rope"),
            split_latent,
            lambda parts: torch.cat([parts[0], together(parts[1])]),
        ),
        f"{layer}.kv_b_proj": TensorRule((f"{ours}.key", f"{ours}.value"), split_key_value, join_key_value),
        f"{layer}.q_{'b_' if low else ''}proj": whole,
    }


def sharpening(theirs):
    """Yarn may scale the scores; here the queries bear it."""
    rope = parameters(theirs)
    of_all = rope["rope_type"] == "yarn" and rope.get("mscale_all_dim")
    return growth(rope["factor"], of_all) ** 2 if of_all else 1.0


def read(theirs, facts):
    layers, dense = facts["n_layers"], theirs.get("first_k_dense_replace", 3)
    if dense < layers:
        raise HubError(
            f"config.json: first_k_dense_replace is {dense} of {layers} layers, so the others are mixtures "
            "of experts (MoE); only dense layers are supported"
        )
    return read_rope(theirs)


def write(facts, theirs):
    widths = facts.get("attention.qk_nope_head_dim", 0) + facts.get("attention.rotary_dim", 0)
    counts = {"num_key_value_heads": facts["n_heads"], "first_k_dense_replace": facts["n_layers"]}
    return {"qk_head_dim": widths, "rope_interleave": True, **counts, **write_rope(facts)}


# fmt: off
DEEPSEEK = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    auto="AutoModelForCausalLM",
    init="gpt2",
    facts={**BASE, "attention.kind": "mla", "norm.eps": 1e-6, "ffn.bias": False},
    keys={
        **SIZES, "q_lora_rank": "attention.q_lora_rank", "kv_lora_rank": "attention.kv_lora_rank",
        "qk_nope_head_dim": "attention.qk_nope_head_dim", "qk_rope_head_dim": "attention.rotary_dim",
        "v_head_dim": "attention.v_head_dim",
    },
    words={"hidden_act": GATED},
    missing={**MISSING, "q_lora_rank": 1536},
    needs={"attention_bias": False},
    unread=(
        *KEYS,
        *("num_key_value_heads", "first_k_dense_replace", "rope_interleave", "head_dim", "qk_head_dim"),
        *(
            "moe_intermediate_size", "moe_layer_freq", "n_group", "topk_group", "topk_method",
            "n_routed_experts",
        ),
        *(
            "n_shared_experts", "num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor",
            "scoring_func",
        ),
        *("num_nextn_predict_layers", "num_mtp_layers", "output_router_logits", "ep_size", "aux_loss_alpha"),
        *("seq_aux", "router_aux_loss_coef"),
    ),
    read=read,
    write=write,
    tensors=tensors,
    prefix="model.",
    aliases=ALIASES,
    spare=SPARE,
)
