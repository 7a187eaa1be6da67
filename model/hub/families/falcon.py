"""Falcon: Bloom's names, but rope and a parallel block, which shares one norm or has two."""

from typing import Any

from configs.registry import Count
from model.hub.families import bloom
from model.hub.families.bloom import BLOOM, END_KEYS
from model.hub.families.gpt_neox import DECODER
from model.hub.families.llama import read as read_llama
from model.hub.families.rope import KEYS, write_rope
from model.hub.family import HFConfig, Key, read_key
from model.hub.spec import ACTIVATIONS, Spec
from model.hub.tensors import Table

NORMS = "num_ln_in_parallel_attn"


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """The newer architecture has more than one head of keys and values, and two norms."""
    is_new = bool(hf_config.get("new_decoder_architecture"))
    blocks: dict[Any, str] = {1: "parallel_shared", 2: "parallel"}
    blocks[None] = blocks[1 + is_new]
    n_kv_heads = hf_config.get("num_kv_heads") if is_new else 1
    return {
        "block.kind": read_key(hf_config, NORMS, Key("block.kind", blocks, None)),
        "ffn.d_ff": spec["ffn.d_ff"] or 4 * spec["d_model"],
        **read_llama(hf_config | {"num_key_value_heads": n_kv_heads}, spec),
    }


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    n_kv_heads = spec["n_heads"] // spec["attention.queries_per_kv"]
    n_norms = 2 if spec["block.kind"] == "parallel" else 1
    return {
        "num_kv_heads": n_kv_heads,
        NORMS: n_norms,
        "new_decoder_architecture": n_kv_heads * n_norms > 1,
        **write_rope(spec),
    }


def tensors(spec: Spec, hf_config: HFConfig) -> Table:
    table = bloom.tensors(spec, hf_config)
    if spec["block.kind"] == "parallel_shared":
        return table
    layer = "transformer.h.*"
    table[f"{layer}.ln_attn"] = table.pop(f"{layer}.input_layernorm")
    table[f"{layer}.ln_mlp"] = table.pop(f"{layer}.post_attention_layernorm")
    return table


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
        **END_KEYS,
    },
    required={
        **BLOOM.required,
        "alibi": False,
        "multi_query": True,
        "parallel_attn": True,
        "output_attentions": False,  # with true, the class loses its mask
    },
    ignored=f"new_decoder_architecture num_kv_heads {NORMS} ff_factor {KEYS}",
    read=read,
    write=write,
    tensors=tensors,
)
