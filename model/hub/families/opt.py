"""OPT: pre-norm, learned positions that begin at the third row."""

from configs.registry import BelowOne
from model.hub.family import Family, Key
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
        "hidden_size": Key("d_model"),
        "num_hidden_layers": Key("n_layers"),
        "num_attention_heads": Key("n_heads"),
        "max_position_embeddings": Key("context_length"),
        "ffn_dim": Key("ffn.d_ff"),
        "activation_function": Key("ffn.kind", ACTIVATIONS, "relu"),
        "enable_bias": Key("attention.bias attention.o_bias ffn.bias", bool, True),
        "layer_norm_elementwise_affine": Key("norm.weight norm.bias", bool, True),
        "tie_word_embeddings": Key("head.tie_weights", bool, True),
        "dropout": Key("dropout", BelowOne, 0.1),
    },
    required={
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "learned_embeddings": True,  # Galactica has this one and the next
        "scale_embeddings": False,
    },
    ignored="layerdrop",
    implied=lambda spec: {"word_embed_proj_dim": spec["d_model"]},
    names=NAMES,
    rules=lambda spec, hf_config: skip_rows(2, POSITIONS),
    prefix="model.",
    aliases={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
