"""Phi: one norm for attention and feed-forward, rope on a part of each head, a bias in the head."""

from functools import partial

from configs.registry import BelowOne, Positive
from model.hub.families.llama import read, write_partial
from model.hub.families.rope import KEYS
from model.hub.family import SIZES, Family, Key
from model.hub.spec import ACTIVATIONS, BASE
from model.hub.tensors import columns

NAMES = """
model.embed_tokens                       embedding.table
model.final_layernorm                    stack.final_norm
lm_head                                  head.map
model.layers.*.input_layernorm           stack.blocks.*.attention_norm
model.layers.*.self_attn.q_proj          stack.blocks.*.attention.query
model.layers.*.self_attn.k_proj          stack.blocks.*.attention.key
model.layers.*.self_attn.v_proj          stack.blocks.*.attention.value
model.layers.*.self_attn.dense           stack.blocks.*.attention.out
model.layers.*.self_attn.q_layernorm     stack.blocks.*.attention.query_norm
model.layers.*.self_attn.k_layernorm     stack.blocks.*.attention.key_norm
model.layers.*.mlp.fc1                   stack.blocks.*.ffn.up
model.layers.*.mlp.fc2                   stack.blocks.*.ffn.out
"""


PHI = Family(
    model_type="phi",
    architecture="PhiForCausalLM",
    spec={
        **BASE,
        "kind": "decoder",
        "position.kind": "rope",
        "block.kind": "parallel_shared",
        "head.bias": True,
    },
    keys={
        **SIZES,
        "hidden_act": Key("ffn.kind", ACTIVATIONS, "gelu_new"),
        "layer_norm_eps": Key("norm.eps", Positive, 1e-5),
        "qk_layernorm": Key("attention.qk_norm", {False: "none", True: "head"}, False),
        "tie_word_embeddings": Key("head.tie_weights", bool, False),
        "resid_pdrop": Key("dropout", BelowOne, 0.0),
    },
    ignored=f"num_key_value_heads {KEYS}",
    read=partial(read, fraction=0.5),
    write=write_partial,
    tensors=lambda spec, hf_config: columns(NAMES),
    prefix="model.",
    aliases={"lm_head.weight": "model.embed_tokens.weight"},
)
