"""Spec: a model config with one spelling for every model, so that two libraries can be compared.

Its keys are config keys without `model.`: norm.eps, attention.sliding_window. Open values are filled in: mha,
gqa and mqa are all gqa with their queries_per_kv, and a feed-forward layer has its d_ff.
"""

from dataclasses import asdict

from configs.schema import EncoderSizes, ModelConfig

SIZES = ("d_model", "n_layers", "n_heads")
# {name in transformers: kind of feed-forward layer}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {"relu": "relu", "relu2": "relu2"}
BIASES = (
    "attention.bias",
    "attention.o_bias",
    "cross_attention.bias",
    "cross_attention.o_bias",
    "ffn.bias",
)
# (before, after): changes of a model that keep its logits, because a new weight is 1 in a norm, a copy of the
# embedding in an untied head, and 0 elsewhere
LOSSLESS_UPGRADES = dict.fromkeys(("norm.weight", "norm.bias", "head.bias", *BIASES), (False, True))
LOSSLESS_UPGRADES |= {"head.tie_weights": (True, False), "embedding.type_vocab_size": (0, 1)}


def attention_spec(node, **options):
    """Multi-head attention with biases."""
    default = {"kind": "gqa", "queries_per_kv": 1, "bias": True, "o_bias": True, "qk_norm": "none"}
    default |= {"logit_softcap": None, "sliding_window": None, "scale": None}
    return {f"{node}.{option}": value for option, value in (default | options).items()}


# of which each family states the differences
BASE = {"embedding.scale_by_sqrt_d": False, "embedding.type_vocab_size": 0, "embedding_norm": False}
BASE |= {"block.kind": "pre", "norm.kind": "layernorm", "norm.weight": True, "norm.bias": True}
BASE |= attention_spec("attention") | {"ffn.bias": True}
BASE |= {"head.bias": False, "head.scale_by_inv_sqrt_d": False}
BASE |= {"head.logit_softcap": None, "head.mlm_transform": None}
POST_NORM = {"block.kind": "post", "embedding_norm": True, "head.bias": True}
RMSNORM_NO_BIAS = {"norm.kind": "rmsnorm"} | dict.fromkeys(
    ("norm.bias", *BIASES[:2], "ffn.bias"), False
)


def spec_from_config(config, model):
    """The spec of a config; `model` is any model built from it."""
    nodes = asdict(config)
    sizes, _ = nodes.pop("encoder"), nodes.pop("init")
    block = (model.stack if config.cross_attention is None else model.decoder).blocks[0]
    nodes["ffn"] = {"kind": config.ffn["kind"], "bias": config.ffn["bias"], "d_ff": block.ffn.d_ff}
    nodes["attention"] = resolve_attention(config.attention, block.attention)
    if nodes.pop("cross_attention") is not None:
        nodes["cross_attention"] = resolve_attention(config.cross_attention, block.cross)
        nodes["encoder"] = {size: sizes[size] or nodes[size] for size in SIZES}
    return {
        f"{node}.{option}" if isinstance(value, dict) else node: entry
        for node, value in nodes.items()
        for option, entry in (value.items() if isinstance(value, dict) else [("", value)])
    }


def resolve_attention(node, module):
    if node["kind"] == "mla":
        dims = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        return (
            node
            | {dim: getattr(module, dim) for dim in dims}
            | {"qk_rope_head_dim": module.rotary_dim}
        )
    scale = None if module.scale == module.head_dim**-0.5 else module.scale
    sizes = {"head_dim": module.head_dim, "v_head_dim": module.v_head_dim}
    return (
        node
        | {"kind": "gqa", "queries_per_kv": module.n_heads // module.n_groups, "scale": scale}
        | sizes
    )


def config_from_spec(spec, init):
    nodes = {"dropout": 0.0, "cross_attention": None, "encoder": {}}
    for name, value in spec.items():
        node, _, option = name.partition(".")
        nodes[node] = (nodes.get(node) or {}) | {option: value} if option else value
    for node in (nodes["attention"], nodes["cross_attention"] or {}):
        if node.get("queries_per_kv") == 1:
            node["kind"] = "mha"
            del node["queries_per_kv"]
    nodes["ffn"] |= {"expansion": None, "multiple_of": 1}
    sizes = {size: nodes["encoder"].get(size) for size in SIZES}
    nodes["encoder"] = EncoderSizes(
        **{size: None if n == nodes[size] else n for size, n in sizes.items()}
    )
    return ModelConfig(**nodes, init=init)
