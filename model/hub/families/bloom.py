"""Bloom: alibi, and a norm after the embedding. Falcon: Bloom's names, but rope and a parallel
block, which shares one norm or has two."""

from configs.registry import BelowOne, Count, Positive
from model.hub.families.gpt_neox import packed_heads
from model.hub.families.rope import KEYS, read_rope, write_rope
from model.hub.family import GROUPS, Family, HFConfig, Key
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


def rules(spec: Spec, hf_config: HFConfig) -> Table:
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
    names=NAMES,
    rules=rules,
    prefix="transformer.",
    aliases={"lm_head.weight": "transformer.word_embeddings.weight"},
)


def read(hf_config: HFConfig, spec: Spec) -> Spec:
    """The newer architecture has more than one head of keys and values, and two norms."""
    if hf_config["new_decoder_architecture"]:
        return {"block.kind": spec["block.kind"] or "parallel"}
    return {"block.kind": spec["block.kind"] or "parallel_shared", GROUPS: spec["n_heads"]}


def write(spec: Spec, ids: HFConfig) -> HFConfig:
    is_new = spec[GROUPS] < spec["n_heads"] or spec["block.kind"] == "parallel"
    return {"new_decoder_architecture": is_new}


BLOCKS = {1: "parallel_shared", 2: "parallel", None: None}
FALCON = BLOOM.derive(
    "falcon",
    "FalconForCausalLM",
    without="n_layer n_head seq_length block.kind ffn.kind",
    spec={"position.kind": "rope", "embedding_norm": False},
    keys={
        "num_hidden_layers": Key("n_layers"),
        "num_attention_heads": Key("n_heads"),
        "max_position_embeddings": Key("context_length", default=2048),
        "ffn_hidden_size": Key("ffn.d_ff", Count | None, None),
        "activation": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "bias": Key("attention.bias attention.o_bias ffn.bias", bool, False),
        "num_kv_heads": Key(GROUPS, Count | None, None),
        "num_ln_in_parallel_attn": Key("block.kind", BLOCKS, None),
    },
    defaults={"new_decoder_architecture": False},
    required={
        "alibi": False,
        "multi_query": True,
        "parallel_attn": True,
        "output_attentions": False,  # with true, the class loses its mask
    },
    ignored=f"ff_factor {KEYS}",
    read=read,
    write=write,
    read_position=read_rope,
    write_position=write_rope,
)
