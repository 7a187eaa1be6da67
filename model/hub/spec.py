"""Facts: what a model is, in words that have one spelling each, so that two libraries can be compared.

A fact is an option as it is typed, without its `model.`: norm.eps, attention.sliding_window. What a config leaves
open is filled in: mha, gqa and mqa are all gqa with their group, and a feed-forward has its width.
"""

from dataclasses import asdict

from configs.schema import EncoderSizes, ModelConfig

SIZES = ("d_model", "n_layers", "n_heads")
# what can be added without changing a logit, and the values it goes between: weights of 1 to a norm, zeros to
# the rest, a copy of the table to a head of its own
LOSSLESS_UPGRADES = {
    "norm.weight": (False, True),
    "norm.bias": (False, True),
    "attention.bias": (False, True),
    "attention.o_bias": (False, True),
    "cross_attention.bias": (False, True),
    "cross_attention.o_bias": (False, True),
    "ffn.bias": (False, True),
    "head.bias": (False, True),
    "head.tie_weights": (True, False),
    "embedding.type_vocab_size": (0, 1),
}


# what many families are
# fmt: off
PLAIN_EMBEDDING = {"embedding.scale_by_sqrt_d": False, "embedding.type_vocab_size": 0, "embedding_norm": False}
PLAIN_HEAD = {"head.bias": False, "head.scale_by_inv_sqrt_d": False, "head.logit_softcap": None, "head.mlm_transform": None}
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "relu2": "relu2",
}
# fmt: on


def attention_spec(node="attention", without=(), **own):
    """One key for each query, scores as they are; `without` those facts that config.json says."""
    usual = {
        "kind": "gqa",
        "queries_per_kv": 1,
        "qk_norm": "none",
        "logit_softcap": None,
        "sliding_window": None,
        "scale": None,
    }
    return {f"{node}.{option}": fact for option, fact in (usual | own).items() if option not in without}


def head_widths(facts, *nodes):
    """Heads that share the width of the model."""
    width = facts["d_model"] // facts["n_heads"]
    return {f"{node}.{option}": width for node in nodes for option in ("head_dim", "v_head_dim")}


def spec_from_config(config, model):
    """The facts of a config; `model` is one that was made from it, whatever its weights."""
    nodes = asdict(config)
    sizes, attention = nodes.pop("encoder"), nodes.pop("attention")
    cross, _ = nodes.pop("cross_attention"), nodes.pop("init")
    block = (model.stack if cross is None else model.decoder).blocks[0]
    del nodes["ffn"]["expansion"], nodes["ffn"]["multiple_of"]
    nodes["ffn"]["d_ff"] = block.ffn.d_ff
    nodes["attention"] = resolve_attention(attention, block.attention)
    if cross is not None:
        nodes["cross_attention"] = resolve_attention(cross, block.cross)
        nodes["encoder"] = {size: sizes[size] or nodes[size] for size in SIZES}
    return {
        f"{node}.{option}" if isinstance(value, dict) else node: fact
        for node, value in nodes.items()
        for option, fact in (value.items() if isinstance(value, dict) else [("", value)])
    }


def resolve_attention(node, module):
    if node["kind"] == "mla":
        widths = ("kv_lora_rank", "qk_nope_head_dim", "rotary_dim", "v_head_dim")
        return dict(node) | {width: getattr(module, width) for width in widths}
    usual = module.scale == module.head_dim**-0.5
    return dict(node) | {
        "kind": "gqa",
        "queries_per_kv": module.n_heads // module.n_groups,
        "head_dim": module.head_dim,
        "v_head_dim": module.v_head_dim,
        "scale": None if usual else module.scale,
    }


def config_from_spec(facts, init):
    """The config that has these facts."""
    nodes = {"dropout": 0.0, "cross_attention": None, "encoder": {}}
    for name, fact in facts.items():
        node, _, option = name.partition(".")
        if option:
            nodes[node] = (nodes.get(node) or {}) | {option: fact}
        else:
            nodes[node] = fact
    for node in (nodes["attention"], nodes["cross_attention"] or {}):
        if node.get("queries_per_kv") == 1:
            node["kind"] = "mha"
            del node["queries_per_kv"]
    nodes["ffn"] |= {"expansion": None, "multiple_of": 1}
    sizes = nodes.pop("encoder")
    own = {size: None if sizes.get(size) == nodes[size] else sizes.get(size) for size in SIZES}
    return ModelConfig(**nodes, encoder=EncoderSizes(**own), init=init)
