"""GPT-NeoX (Pythia), Bloom and Falcon: decoders with Megatron's names, and query, key and value in
one matrix."""

from typing import Any

import torch
from torch import Tensor

from configs.registry import BelowOne, Count, Positive
from model.hub.families.llama import read
from model.hub.families.rope import KEYS, read_rope, write_rope
from model.hub.family import SIZES, Family, HFConfig, Key, read_key
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import Table, TensorRule, columns

NEOX_NAMES = """
gpt_neox.embed_in                               embedding.table
gpt_neox.final_layer_norm                       stack.final_norm
embed_out                                       head.map
gpt_neox.layers.*.input_layernorm               stack.blocks.*.attention_norm
gpt_neox.layers.*.post_attention_layernorm      stack.blocks.*.ffn_norm
gpt_neox.layers.*.attention.dense               stack.blocks.*.attention.out
gpt_neox.layers.*.mlp.dense_h_to_4h             stack.blocks.*.ffn.up
gpt_neox.layers.*.mlp.dense_4h_to_h             stack.blocks.*.ffn.out
"""
BLOOM_NAMES = """
transformer.word_embeddings                     embedding.table
transformer.word_embeddings_layernorm           stack.embedding_norm
transformer.ln_f                                stack.final_norm
lm_head                                         head.map
transformer.h.*.input_layernorm                 stack.blocks.*.attention_norm
transformer.h.*.post_attention_layernorm        stack.blocks.*.ffn_norm
transformer.h.*.self_attention.dense            stack.blocks.*.attention.out
transformer.h.*.mlp.dense_h_to_4h               stack.blocks.*.ffn.up
transformer.h.*.mlp.dense_4h_to_h               stack.blocks.*.ffn.out
"""


def packed_heads(spec: Spec) -> TensorRule:
    """The key and the value of a group follow the queries that share them."""
    sizes = [spec["attention.queries_per_kv"], 1, 1]
    n_groups = spec["n_heads"] // sizes[0]

    def unpack(weight: Tensor) -> list[Tensor]:
        groups = weight.unflatten(0, (n_groups, sum(sizes), -1))
        return [part.flatten(0, 2) for part in groups.split(sizes, 1)]

    def pack(parts: list[Tensor]) -> Tensor:
        heads = zip(parts, sizes, strict=True)
        groups = [part.unflatten(0, (n_groups, n, -1)) for part, n in heads]
        return torch.cat(groups, 1).flatten(0, 2)

    names = [f"stack.blocks.*.attention.{part}" for part in ("query", "key", "value")]
    return TensorRule(tuple(names), unpack, pack)


def neox_tensors(spec: Spec, hf_config: HFConfig) -> Table:
    packed = {"gpt_neox.layers.*.attention.query_key_value": packed_heads(spec)}
    return columns(NEOX_NAMES) | packed


def read_neox(hf_config: HFConfig, spec: Spec) -> Spec:
    """rope_theta and partial_rotary_factor have names of their own."""
    theta, fraction = hf_config.get("rotary_emb_base"), hf_config.get("rotary_pct")
    rope = {"rope_theta": theta, "partial_rotary_factor": fraction}
    return read_rope(hf_config | rope, fraction=0.25)


def write_neox(spec: Spec, ids: HFConfig) -> HFConfig:
    rope = write_rope(spec, is_partial=True)
    keys = {"rotary_emb_base": rope.pop("rope_theta")}
    keys["rotary_pct"] = rope.pop("partial_rotary_factor")
    return keys | rope


DECODER = {name: value for name, value in BASE.items() if name != "block.kind"}
DECODER |= {"kind": "decoder"}
NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    spec=DECODER | {"position.kind": "rope"},
    keys={
        **SIZES,
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "use_parallel_residual": Key("block.kind", {True: "parallel", False: "pre"}, True),
        "attention_bias": Key("attention.bias attention.o_bias", bool, True),
        "tie_word_embeddings": Key("head.tie_weights", bool, False),
        "hidden_dropout": Key("dropout", BelowOne, 0.0),
    },
    ignored=f"rotary_emb_base rotary_pct hidden_dropout_prob {KEYS}",
    implied=lambda spec: {
        "rope_theta": spec["position.rope_theta"],
        "partial_rotary_factor": spec["position.rotary_fraction"],
    },
    read=read_neox,
    write=write_neox,
    tensors=neox_tensors,
    prefix="gpt_neox.",
    aliases={"embed_out.weight": "gpt_neox.embed_in.weight"},
    optional=r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
)


def bloom_tensors(spec: Spec, hf_config: HFConfig) -> Table:
    names = BLOOM_NAMES
    if spec["block.kind"] == "parallel":  # Falcon with two norms
        names = names.replace("input_layernorm", "ln_attn")
        names = names.replace("post_attention_layernorm", "ln_mlp")
    packed = {"transformer.h.*.self_attention.query_key_value": packed_heads(spec)}
    return columns(names) | packed


BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    spec={
        **DECODER,
        "block.kind": "pre",
        "position.kind": "alibi",
        "embedding_norm": True,
        "ffn.kind": "gelu_tanh",
    },
    keys={
        "hidden_size": Key("d_model", older="n_embed"),
        "n_layer": Key("n_layers", older="num_hidden_layers"),
        "n_head": Key("n_heads", older="num_attention_heads"),
        "seq_length": Key("context_length", default=2048),
        "layer_norm_epsilon": Key("norm.eps", Positive, 1e-5),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "hidden_dropout": Key("dropout", BelowOne, 0.0),
    },
    required={"apply_residual_connection_post_layernorm": False},
    ignored="slow_but_exact offset_alibi skip_bias_add skip_bias_add_qkv attention_softmax_in_fp32 "
    "masked_softmax_fusion bias_dropout_fusion",
    read=lambda hf_config, spec: {"ffn.d_ff": 4 * spec["d_model"]},
    tensors=bloom_tensors,
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
)

NORMS = "num_ln_in_parallel_attn"


def read_falcon(hf_config: HFConfig, spec: Spec) -> Spec:
    """The newer architecture has more than one head of keys and values, and two norms."""
    is_new = bool(hf_config.get("new_decoder_architecture"))
    blocks: dict[Any, str] = {1: "parallel_shared", 2: "parallel"}
    blocks[None] = blocks[1 + is_new]
    n_kv_heads = hf_config.get("num_kv_heads") if is_new else 1
    return {
        "block.kind": read_key(hf_config, NORMS, Key("block.kind", blocks, None)),
        "ffn.d_ff": spec["ffn.d_ff"] or 4 * spec["d_model"],
        **read(hf_config | {"num_key_value_heads": n_kv_heads}, spec),
    }


def write_falcon(spec: Spec, ids: HFConfig) -> HFConfig:
    n_kv_heads = spec["n_heads"] // spec["attention.queries_per_kv"]
    n_norms = 2 if spec["block.kind"] == "parallel" else 1
    return {
        "num_kv_heads": n_kv_heads,
        NORMS: n_norms,
        "new_decoder_architecture": n_kv_heads * n_norms > 1,
        **write_rope(spec),
    }


FALCON = BLOOM._replace(
    model_type="falcon",
    architecture="FalconForCausalLM",
    spec=DECODER | {"position.kind": "rope"},
    keys={
        "hidden_size": Key("d_model", older="n_embed"),
        "num_hidden_layers": Key("n_layers"),
        "num_attention_heads": Key("n_heads"),
        "max_position_embeddings": Key("context_length", default=2048),
        "ffn_hidden_size": Key("ffn.d_ff", Count | None, None),
        "activation": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "bias": Key("attention.bias attention.o_bias ffn.bias", bool, False),
        "layer_norm_epsilon": Key("norm.eps", Positive, 1e-5),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "hidden_dropout": Key("dropout", BelowOne, 0.0),
    },
    required={
        "alibi": False,
        "multi_query": True,
        "parallel_attn": True,
        "apply_residual_connection_post_layernorm": False,
        "output_attentions": False,  # with true, the class loses its mask
    },
    ignored=f"new_decoder_architecture num_kv_heads {NORMS} ff_factor {KEYS}",
    read=read_falcon,
    write=write_falcon,
)
