"""Spec: a model config with one spelling for every model, so that two libraries can be compared.

Its keys are config keys without `model.`: norm.eps, attention.sliding_window. Open values are
filled in: mha, gqa and mqa are all gqa with their queries_per_kv, and a feed-forward layer has its
d_ff. `layers` is null, or lists what each layer changes in the other keys.
"""

from dataclasses import asdict
from typing import Any

from configs.errors import HubError
from configs.registry import flatten, from_dict, nested
from configs.schema import ModelConfig

Spec = dict[str, Any]

# {name in transformers: kind of feed-forward layer}; export writes the first name of a kind
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
GAINED = """
    norm.weight norm.bias attention.bias attention.o_bias cross_attention.bias
    cross_attention.o_bias ffn.bias head.bias
"""
# (before, after): changes of a model that keep its logits, such as a bias in a class that has it. A
# new weight is 1 in a norm, a copy of the embedding in an untied head, and 0 elsewhere
LOSSLESS_UPGRADES = {
    **dict.fromkeys(GAINED.split(), (False, True)),
    "head.tie_weights": (True, False),
    "embedding.type_vocab_size": (0, 1),
}


def attention_spec(node: str, **options: Any) -> Spec:
    """Multi-head attention with biases."""
    values = {
        "kind": "gqa",
        "queries_per_kv": 1,
        "head_dim": None,
        "v_head_dim": None,
        "bias": True,
        "o_bias": True,
        "qk_norm": "none",
    }
    return {f"{node}.{option}": value for option, value in (values | options).items()}


# of which each family states the differences; an option that is missing is null
BASE = {
    "embedding.scale_by_sqrt_d": False,
    "embedding.type_vocab_size": 0,
    "embedding_norm": False,
    "prefix_lm": False,
    "block.kind": "pre",
    "norm.kind": "layernorm",
    "norm.weight": True,
    "norm.bias": True,
    **attention_spec("attention"),
    "ffn.bias": True,
    "head.bias": False,
    "head.scale_by_inv_sqrt_d": False,
}
# what no class of transformers sets
OPEN = {
    "init": "gpt2",  # the weights come from files
    "dropout": 0.0,
    "encoder.d_model": None,
    "encoder.n_layers": None,
    "encoder.n_heads": None,
}
POST_NORM = {"block.kind": "post", "embedding_norm": True, "head.bias": True}
RMSNORM_NO_BIAS = {
    "norm.kind": "rmsnorm",
    "norm.bias": False,
    "attention.bias": False,
    "attention.o_bias": False,
    "ffn.bias": False,
}


def spec_from_config(config: ModelConfig, model: Any) -> Spec:
    """The spec of a config; `model` is any model built from it."""
    stack = model.stack if config.cross_attention is None else model.decoder
    return merge_layers(list(map(layer_spec, stack.layers, stack.blocks)))


def layer_spec(config: ModelConfig, block: Any) -> Spec:
    """That of a model whose layers are all like this one."""
    nodes = asdict(config)
    for name in ("init", "layers", "layer_kinds"):
        del nodes[name]
    nodes["ffn"] = closed_options(nodes["ffn"], block.ffn)
    nodes["attention"] = closed_options(nodes["attention"], block.attention)
    if config.cross_attention is not None:
        nodes["cross_attention"] = closed_options(config.cross_attention, block.cross)
        for size, n in nodes["encoder"].items():
            nodes["encoder"][size] = n or nodes[size]
    return flatten(nodes)


def merge_layers(layers: list[Spec]) -> Spec:
    """One spec: that of a layer, and what each layer changes in it. The layer has positions, if any
    has, and so all options."""
    fullest = max(layers, key=len)
    changes = []
    for layer in layers:
        changes.append({name: layer[name] for name in layer if layer[name] != fullest.get(name)})
    return fullest | {"layers": changes if any(changes) else None}


def closed_options(node: Spec, part: Any) -> Spec:
    """The options of a part. What its config may leave open is an attribute of the same name, as
    head_dim of attention and d_ff of a feed-forward layer are."""
    kind = node["kind"]
    options = {name: getattr(part, name, node[name]) for name in node if name != "scale"}
    # the part has the scale that null stands for
    options |= {"scale": node.get("scale"), "expansion": None, "multiple_of": None}
    if kind in ("mha", "gqa", "mqa"):
        options["kind"] = "gqa"
        options["queries_per_kv"] = part.n_heads // part.n_groups
        options["scale"] = None if part.scale == part.head_dim**-0.5 else part.scale
    if kind == "mla":
        options["qk_rope_head_dim"] = part.rotary_dim
    if kind == "moe":
        options["expert"] = closed_options(node["expert"], part.experts)
    return options


def config_from_spec(spec: Spec) -> ModelConfig:
    nodes = {"cross_attention": None} | nested(OPEN | spec)
    layers = spec.get("layers") or []
    names = [layer_name(spec | changes) for changes in layers]
    nodes["layers"] = names or None
    nodes["layer_kinds"] = {}
    for name, changes in zip(names, map(nested, layers), strict=True):
        if nodes["layer_kinds"].setdefault(name, changes) != changes:
            raise HubError("layers of more than one size of window are not supported")
    return from_dict(ModelConfig, nodes, "model.")


def layer_name(layer: Spec) -> str:
    if layer["position.kind"] == "none":
        return "nope"
    return "window" if layer.get("attention.sliding_window") else "full"
