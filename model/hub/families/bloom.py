"""Bloom: alibi, and a norm after the embedding. Falcon: Bloom's names, but rope and a parallel
block, which shares one norm or has two."""

from typing import Any

from model.hub.families.gpt_neox import packed_heads
from model.hub.families.rope import read_rope, write_rope
from model.hub.family import GROUPS, Family, Keys
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import Table, columns

NAMES = """
transformer.word_embeddings                     embedding.table
transformer.word_embeddings_layernorm           stack.embedding_norm
transformer.ln_f                                stack.final_norm
lm_head                                         head.map
transformer.h.*.self_attention.dense            stack.blocks.*.attention.out
transformer.h.*.mlp.dense_h_to_4h               stack.blocks.*.ffn.up
transformer.h.*.mlp.dense_4h_to_h               stack.blocks.*.ffn.out
"""
NORMS = """
transformer.h.*.input_layernorm                 stack.blocks.*.attention_norm
transformer.h.*.post_attention_layernorm        stack.blocks.*.ffn_norm
"""
PARALLEL_NORMS = """
transformer.h.*.ln_attn                         stack.blocks.*.attention_norm
transformer.h.*.ln_mlp                          stack.blocks.*.ffn_norm
"""


def rules(spec: Spec, config: Any) -> Table:
    norms = PARALLEL_NORMS if spec["block.kind"] == "parallel" else NORMS
    packed = {"transformer.h.*.self_attention.query_key_value": packed_heads(spec)}
    return columns(norms) | packed


BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    spec=BASE
    | {"kind": "decoder", "position.kind": "alibi", "embedding_norm": True}
    | {"ffn.kind": "gelu_tanh", "ffn.d_ff": None},
    keys={
        "hidden_size": "d_model",
        "n_layer": "n_layers",
        "n_head": "n_heads",
        "layer_norm_epsilon": "norm.eps",
        "tie_word_embeddings": "head.tie_weights",
        "hidden_dropout": "dropout",
    },
    # no limit: folders of before have this key, and the class keeps it
    read=lambda config, spec: {"context_length": getattr(config, "seq_length", 2048)},
    write=lambda spec, special: {"seq_length": spec["context_length"]},
    names=NAMES,
    rules=rules,
)
BLOCKS = {1: "parallel_shared", 2: "parallel", None: None}


def read(config: Any, spec: Spec) -> Spec:
    """The newer architecture has more than one head of keys and values, and two norms."""
    if config.new_decoder_architecture:
        return {"block.kind": spec["block.kind"] or "parallel"}
    return {"block.kind": spec["block.kind"] or "parallel_shared", GROUPS: spec["n_heads"]}


def write(spec: Spec, special: Keys) -> Keys:
    is_new = spec[GROUPS] < spec["n_heads"] or spec["block.kind"] == "parallel"
    return {"new_decoder_architecture": is_new}


FALCON = BLOOM.derive(
    "falcon",
    "FalconForCausalLM",
    without="n_layer n_head block.kind ffn.kind",
    spec={"position.kind": "rope", "embedding_norm": False},
    keys={
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "context_length",
        "ffn_hidden_size": "ffn.d_ff",
        "activation": "ffn.kind",
        "bias": "attention.bias attention.o_bias ffn.bias",
        "num_kv_heads": GROUPS,
        "num_ln_in_parallel_attn": "block.kind",
        "alibi": "",
    },
    values={"activation": ACTIVATIONS, "num_ln_in_parallel_attn": BLOCKS, "alibi": {False: None}},
    read=read,
    write=write,
    read_position=read_rope,
    write_position=write_rope,
)
