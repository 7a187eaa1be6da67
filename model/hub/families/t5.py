"""T5, 1.0 and 1.1 (Flan): a bias by distance, scores unscaled, a head that is tied and scaled, or neither."""

from configs.errors import HubError
from model.hub.family import Family
from model.hub.spec import attention_spec

ACTIVATIONS = {"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"}
# what feed_forward_proj says already
IMPLIED = {
    "relu": {"dense_act_fn": "relu", "is_gated_act": False},
    "geglu_tanh": {"dense_act_fn": "gelu_new", "is_gated_act": True},
    "swiglu": {"dense_act_fn": "silu", "is_gated_act": True},
}
NODES = ("attention", "cross_attention")


def stack(side, gated):
    layer, ours = f"{side}.block.*.layer", f"{side}.blocks.*"
    looks = {0: ("SelfAttention", "attention")} | (
        {1: ("EncDecAttention", "cross")} if side == "decoder" else {}
    )
    parts = {"q": "query", "k": "key", "v": "value", "o": "out"}
    table = {f"{side}.final_layer_norm": f"{side}.final_norm"}
    table[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"] = f"{side}.position.table"
    for i, (name, node) in looks.items():
        table |= {f"{layer}.{i}.{name}.{p}": f"{ours}.{node}.{part}" for p, part in parts.items()}
        table[f"{layer}.{i}.layer_norm"] = f"{ours}.{node}_norm"
    ffn = f"{layer}.{len(looks)}"
    table |= {f"{ffn}.DenseReluDense.wo": f"{ours}.ffn.out", f"{ffn}.layer_norm": f"{ours}.ffn_norm"}
    ways_in = {"wi_0": "gate", "wi_1": "up"} if gated else {"wi": "up"}
    return table | {f"{ffn}.DenseReluDense.{w}": f"{ours}.ffn.{part}" for w, part in ways_in.items()}


def tensors(facts, theirs):
    gated = facts["ffn.kind"] != "relu"
    shared = {"shared": "embedding.table", "lm_head": "head.map"}
    return {**shared, **stack("encoder", gated), **stack("decoder", gated)}


def read(theirs, facts):
    """A config that does not tie its head does not scale it either; newer ones say the latter by itself."""
    for key, value in IMPLIED[facts["ffn.kind"]].items():
        if theirs.get(key, value) != value:
            raise HubError(f"config.json: {key} is {theirs[key]!r} and feed_forward_proj asks for {value!r}")
    scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True) is not False)
    sizes = {"encoder.d_model": facts["d_model"], "encoder.n_heads": facts["n_heads"]}
    return {"head.tie_weights": scaled, "head.scale_by_inv_sqrt_d": scaled, **sizes}


def write(facts, theirs):
    sides = ("d_model", "n_heads")
    if odd := [size for size in sides if facts[f"encoder.{size}"] != facts[size]]:
        raise HubError(
            f"model.encoder.{odd[0]} is another one and T5ForConditionalGeneration has one for both"
        )
    return {
        "tie_word_embeddings": facts["head.scale_by_inv_sqrt_d"],
        "scale_decoder_outputs": facts["head.scale_by_inv_sqrt_d"],
    }


# fmt: off
T5 = Family(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    auto="AutoModelForSeq2SeqLM",
    init="t5",
    facts={
        "kind": "encoder_decoder", "embedding.scale_by_sqrt_d": False, "embedding.type_vocab_size": 0,
        "embedding_norm": False, "position.kind": "relative", "block.kind": "pre", "norm.kind": "rmsnorm",
        "norm.weight": True, "norm.bias": False, **attention_spec(bias=False, o_bias=False, scale=1.0),
        **attention_spec("cross_attention", bias=False, o_bias=False, scale=1.0), "ffn.bias": False,
        "head.bias": False, "head.logit_softcap": None, "head.mlm_transform": None,
    },
    keys={
        "d_model": "d_model", "num_layers": "encoder.n_layers", "num_decoder_layers": "n_layers",
        "num_heads": "n_heads", "n_positions": "context_length",
        "d_kv": tuple(f"{node}.{width}" for node in NODES for width in ("head_dim", "v_head_dim")),
        "d_ff": "ffn.d_ff", "feed_forward_proj": "ffn.kind",
        "relative_attention_num_buckets": "position.num_buckets",
        "relative_attention_max_distance": "position.max_distance", "layer_norm_epsilon": "norm.eps",
        "dropout_rate": "dropout",
    },
    words={"feed_forward_proj": ACTIVATIONS},
    missing={
        "num_decoder_layers": lambda theirs: theirs["num_layers"], "n_positions": 512,
        "feed_forward_proj": "relu", "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1,
    },
    needs={"is_decoder": False},
    unread=("tie_word_embeddings", "scale_decoder_outputs", "is_gated_act", "dense_act_fn"),
    read=read,
    write=write,
    tensors=tensors,
    aliases={
        "lm_head.weight": "shared.weight", "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    spare=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    fallback={"lm_head.weight": "shared.weight"},
)
