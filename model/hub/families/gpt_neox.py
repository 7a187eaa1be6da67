"""Classes with query, key and value in one matrix, head by head. GPT-NeoX (Pythia): a parallel block
with two norms, and rope on a part of each head. Bloom: alibi, and a norm after the embedding. Falcon:
Bloom's names, but rope and a parallel block, which shares one norm or has two."""

from typing import Any

from model.hub.families.llama import DECODER
from model.hub.families.positions import read_rope, write_rope
from model.hub.family import GROUPS, SIZES, Family, Keys
from model.hub.spec import ACTIVATIONS, BASE, Spec
from model.hub.tensors import QKV, Table, TensorRule, columns, packed

NAMES = """
gpt_neox.embed_in                               embedding.table
gpt_neox.final_layer_norm                       stack.final_norm
lm_head                                         head.map
gpt_neox.layers.*.input_layernorm               stack.blocks.*.attention_norm
gpt_neox.layers.*.post_attention_layernorm      stack.blocks.*.ffn_norm
gpt_neox.layers.*.attention.dense               stack.blocks.*.attention.out
gpt_neox.layers.*.mlp.dense_h_to_4h             stack.blocks.*.ffn.up
gpt_neox.layers.*.mlp.dense_4h_to_h             stack.blocks.*.ffn.out
"""


def packed_heads(spec: Spec) -> TensorRule:
    """The key and the value of a group follow the queries that share them."""
    n_queries, width = spec["attention.queries_per_kv"], spec["attention.head_dim"]
    return packed(QKV, [n_queries * width, width, width], spec["n_heads"] // n_queries)


NEOX = DECODER.derive(
    "gpt_neox",
    without="rms_norm_eps num_key_value_heads head_dim block.kind",
    spec={"norm.kind": "layernorm", "norm.bias": True, "ffn.bias": True}
    | {"position.rotary_fraction": 0.25},
    keys={
        "layer_norm_eps": "norm.eps",
        "use_parallel_residual": "block.kind",
        "hidden_dropout": "dropout",
    },
    values={"hidden_act": ACTIVATIONS, "use_parallel_residual": {True: "parallel", False: "pre"}},
    names=NAMES,
    rules=lambda spec, config: {"gpt_neox.layers.*.attention.query_key_value": packed_heads(spec)},
)
BLOOM_NAMES = """
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


def bloom_rules(spec: Spec, config: Any) -> Table:
    norms = PARALLEL_NORMS if spec["block.kind"] == "parallel" else NORMS
    packed = {"transformer.h.*.self_attention.query_key_value": packed_heads(spec)}
    return columns(norms) | packed


BLOOM = Family(
    model_type="bloom",
    spec=BASE
    | {"kind": "decoder", "position.kind": "alibi", "embedding_norm": True}
    | {"ffn.kind": "gelu_tanh", "ffn.d_ff": None},
    keys={**SIZES, "layer_norm_epsilon": "norm.eps", "hidden_dropout": "dropout"},
    # no limit: folders of before have this key, and the class keeps it
    read=lambda config, spec: {"context_length": getattr(config, "seq_length", 2048)},
    write=lambda spec: {"seq_length": spec["context_length"]},
    names=BLOOM_NAMES,
    rules=bloom_rules,
)
BLOCKS = {1: "parallel_shared", 2: "parallel", None: None}


def read_falcon(config: Any, spec: Spec) -> Spec:
    """The newer architecture has more than one head of keys and values, and two norms."""
    if config.new_decoder_architecture:
        return {"block.kind": spec["block.kind"] or "parallel"}
    return {"block.kind": spec["block.kind"] or "parallel_shared", GROUPS: spec["n_heads"]}


def write_falcon(spec: Spec) -> Keys:
    is_new = spec[GROUPS] < spec["n_heads"] or spec["block.kind"] == "parallel"
    return {"new_decoder_architecture": is_new}


FALCON = BLOOM.derive(
    "falcon",
    without="block.kind ffn.kind",
    spec={"position.kind": "rope", "embedding_norm": False},
    keys={
        "ffn_hidden_size": "ffn.d_ff",
        "activation": "ffn.kind",
        "bias": "attention.bias attention.o_bias ffn.bias",
        "num_kv_heads": GROUPS,
        "num_ln_in_parallel_attn": "block.kind",
    },
    values={"activation": ACTIVATIONS, "num_ln_in_parallel_attn": BLOCKS},
    read=read_falcon,
    write=write_falcon,
    read_position=read_rope,
    write_position=write_rope,
)
