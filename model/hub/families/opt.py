"""OPT: pre-norm, learned positions that begin at the third row."""

from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, BASE
from model.hub.tensors import skip_rows

NAMES = """
model.decoder.embed_tokens                     embedding.table
model.decoder.final_layer_norm                 stack.final_norm
lm_head                                        head.map
model.decoder.layers.*.self_attn_layer_norm    stack.blocks.*.attention_norm
model.decoder.layers.*.self_attn.q_proj        stack.blocks.*.attention.query
model.decoder.layers.*.self_attn.k_proj        stack.blocks.*.attention.key
model.decoder.layers.*.self_attn.v_proj        stack.blocks.*.attention.value
model.decoder.layers.*.self_attn.out_proj      stack.blocks.*.attention.out
model.decoder.layers.*.final_layer_norm        stack.blocks.*.ffn_norm
model.decoder.layers.*.fc1                     stack.blocks.*.ffn.up
model.decoder.layers.*.fc2                     stack.blocks.*.ffn.out
"""
POSITIONS = "model.decoder.embed_positions stack.position.table"
OPT = Family(
    model_type="opt",
    architecture="OPTForCausalLM",
    spec=BASE | {"kind": "decoder", "position.kind": "learned", "norm.eps": 1e-5},
    keys={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "context_length",
        "ffn_dim": "ffn.d_ff",
        "activation_function": "ffn.kind",
        "enable_bias": "attention.bias attention.o_bias ffn.bias",
        "layer_norm_elementwise_affine": "norm.weight norm.bias",
        "tie_word_embeddings": "head.tie_weights",
        "dropout": "dropout",
    },
    values={"activation_function": ACTIVATIONS},
    write=lambda spec, special: {"word_embed_proj_dim": spec["d_model"]},
    names=NAMES,
    rules=lambda spec, config: skip_rows(2, POSITIONS),
)
