"""BART: post-norm, learned positions that begin at the third row, a bias after the tied head."""

from configs.registry import Decay
from model.hub.family import Family, Key
from model.hub.spec import ACTIVATIONS, BASE, POST_NORM, attention_spec
from model.hub.tensors import elementwise, skip_rows

UNSUPPORTED = (
    "normalize_before",
    "add_final_layer_norm",
    "static_position_embeddings",
    "add_bias_logits",
)


def stack(side):
    layer, block = f"model.{side}.layers.*", f"{side}.blocks.*"
    table = {
        f"model.{side}.embed_positions": skip_rows(2, f"{side}.position.table"),
        f"model.{side}.layernorm_embedding": f"{side}.embedding_norm",
        f"{layer}.fc1": f"{block}.ffn.up",
        f"{layer}.fc2": f"{block}.ffn.out",
        f"{layer}.final_layer_norm": f"{block}.ffn_norm",
    }
    attentions = {"self_attn": "attention"} | (
        {"encoder_attn": "cross"} if side == "decoder" else {}
    )
    for name, attention in attentions.items():
        table[f"{layer}.{name}_layer_norm"] = f"{block}.{attention}_norm"
        for hf_part, part in {"q": "query", "k": "key", "v": "value", "out": "out"}.items():
            table[f"{layer}.{name}.{hf_part}_proj"] = f"{block}.{attention}.{part}"
    return table


def tensors(spec, hf_config):
    bias = elementwise("head.map.bias", lambda row: row[0], lambda bias: bias[None])
    ends = {"model.shared": "embedding.table", "final_logits_bias": bias}
    return {**ends, **stack("encoder"), **stack("decoder")}


BART = Family(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    init="bert",
    spec={**BASE, **attention_spec("cross_attention"), **POST_NORM}
    | {"kind": "encoder_decoder", "position.kind": "learned", "norm.eps": 1e-5},
    keys={
        "d_model": Key("d_model encoder.d_model"),
        "encoder_layers": Key("encoder.n_layers"),
        "decoder_layers": Key("n_layers"),
        "encoder_attention_heads": Key("n_heads encoder.n_heads"),
        "decoder_attention_heads": Key("n_heads"),
        "max_position_embeddings": Key("context_length", default=1024),
        "encoder_ffn_dim": Key("ffn.d_ff"),
        "decoder_ffn_dim": Key("ffn.d_ff"),
        "activation_function": Key("ffn.kind", ACTIVATIONS, "gelu"),
        "scale_embedding": Key("embedding.scale_by_sqrt_d", bool, False),
        "tie_word_embeddings": Key("head.tie_weights", {True: True}, True),
        "dropout": Key("dropout", Decay, 0.1),
    },
    required=dict.fromkeys(UNSUPPORTED, False)
    | {"normalize_embedding": True, "extra_pos_embeddings": 2, "is_encoder_decoder": True},
    implied=lambda spec: {"num_hidden_layers": spec["encoder.n_layers"]},
    tensors=tensors,
    prefix="model.",
    aliases=dict.fromkeys(
        (
            "lm_head.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
        ),
        "model.shared.weight",
    ),
    fallback={"final_logits_bias": None},
)
