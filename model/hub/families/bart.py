"""BART: post-norm, learned positions that begin at the third row, a head with a constant added."""

from configs.errors import HubError
from model.hub.family import Family
from model.hub.spec import ACTIVATIONS, attention_spec, head_widths
from model.hub.tensors import elementwise, skip_rows


def stack(side):
    layer, ours = f"model.{side}.layers.*", f"{side}.blocks.*"
    looks = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if side == "decoder" else {})
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
    table = {
        f"model.{side}.embed_positions": skip_rows(2, f"{side}.position.table"),
        f"model.{side}.layernorm_embedding": f"{side}.embedding_norm",
        f"{layer}.fc1": f"{ours}.ffn.up",
        f"{layer}.fc2": f"{ours}.ffn.out",
        f"{layer}.final_layer_norm": f"{ours}.ffn_norm",
    }
    for name, node in looks.items():
        table |= {f"{layer}.{name}.{p}": f"{ours}.{node}.{part}" for p, part in parts.items()}
        table[f"{layer}.{name}_layer_norm"] = f"{ours}.{node}_norm"
    return table


def tensors(facts, theirs):
    constant = elementwise("head.map.bias", lambda row: row[0], lambda bias: bias[None])
    ends = {"model.shared": "embedding.table", "final_logits_bias": constant}
    return {**ends, **stack("encoder"), **stack("decoder")}


def read(theirs, facts):
    heads, own = facts["n_heads"], facts["encoder.n_heads"]
    if heads != own:
        raise HubError(
            f"config.json: encoder_attention_heads is {own} and decoder_attention_heads {heads}; only equal "
            "ones are supported"
        )
    return head_widths(facts, "attention", "cross_attention") | {"encoder.d_model": facts["d_model"]}


# fmt: off
BART = Family(
    model_type="bart",
    architecture="BartForConditionalGeneration",
    auto="AutoModelForSeq2SeqLM",
    init="bert",
    facts={
        "kind": "encoder_decoder", "embedding.type_vocab_size": 0, "embedding_norm": True,
        "position.kind": "learned", "block.kind": "post", "norm.kind": "layernorm", "norm.weight": True,
        "norm.bias": True, "norm.eps": 1e-5, **attention_spec(bias=True, o_bias=True),
        **attention_spec("cross_attention", bias=True, o_bias=True), "ffn.bias": True, "head.bias": True,
        "head.scale_by_inv_sqrt_d": False, "head.logit_softcap": None, "head.mlm_transform": None,
    },
    keys={
        "d_model": "d_model", "encoder_layers": "encoder.n_layers", "decoder_layers": "n_layers",
        "encoder_attention_heads": "encoder.n_heads", "decoder_attention_heads": "n_heads",
        "max_position_embeddings": "context_length", "encoder_ffn_dim": "ffn.d_ff", "decoder_ffn_dim": "ffn.d_ff",
        "activation_function": "ffn.kind", "scale_embedding": "embedding.scale_by_sqrt_d",
        "tie_word_embeddings": "head.tie_weights", "dropout": "dropout",
    },
    words={"activation_function": ACTIVATIONS, "tie_word_embeddings": {True: True}},
    missing={
        "max_position_embeddings": 1024, "activation_function": "gelu", "scale_embedding": False,
        "tie_word_embeddings": True, "dropout": 0.1,
    },
    needs={
        "normalize_before": False, "normalize_embedding": True, "add_final_layer_norm": False,
        "static_position_embeddings": False, "add_bias_logits": False, "extra_pos_embeddings": 2,
        "is_decoder": False,
    },
    unread=("num_hidden_layers",),
    read=read,
    tensors=tensors,
    prefix="model.",
    fallback={"final_logits_bias": None},
    aliases={
        "lm_head.weight": "model.shared.weight", "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
)
