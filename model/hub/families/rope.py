"""RoPE in config.json: rope_theta with rope_scaling, or both in rope_parameters."""

import math

import torch
from torch import Tensor

from configs.errors import HubError
from configs.registry import NonNegative, Positive, build, check_value, flatten
from model.hub.family import HFConfig
from model.hub.spec import Spec
from model.hub.tensors import Table, columns
from model.rope_scaling import SCALINGS

KEYS = "rope_theta rope_scaling rope_parameters partial_rotary_factor"
QUERY_KEY = """
model.layers.*.self_attn.q_proj               stack.blocks.*.attention.query
model.layers.*.self_attn.k_proj               stack.blocks.*.attention.key
"""
SCALING = "position.scaling."


def rope_parameters(hf_config: HFConfig, default_theta: float = 1e4) -> HFConfig:
    """All that config.json has about rope, in the newer form."""
    older = hf_config.get("rope_scaling") or {}
    rope = dict(hf_config.get("rope_parameters") or older)
    theta = hf_config.get("rope_theta") or rope.get("rope_theta", default_theta)
    is_contradicted = older not in ({}, rope)
    if is_contradicted or rope.setdefault("rope_theta", theta) != theta:
        raise HubError("rope_scaling or rope_theta contradicts rope_parameters; remove one")
    defaults = {
        "rope_type": rope.pop("type", "default"),
        "partial_rotary_factor": hf_config.get("partial_rotary_factor"),
    }
    return defaults | rope


def yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_yarn(rope: HFConfig) -> HFConfig:
    """As options of our yarn."""
    options = {"beta_fast": 32.0, "beta_slow": 1.0, **rope}
    options.pop("finetuned", None)  # whether the model was trained so
    mscale = options.pop("mscale", None)
    mscale_all_dim = options.pop("mscale_all_dim", None)
    if options.pop("truncate", True) is not True:
        raise HubError("truncate is false; only true is supported")
    if mscale and mscale_all_dim and options.get("attention_factor") is None:
        whole = yarn_mscale(rope["factor"], mscale_all_dim)
        options["attention_factor"] = yarn_mscale(rope["factor"], mscale) / whole
    return options


def read_rope(hf_config: HFConfig, spec: Spec) -> Spec:
    """The spec has what a missing rope_theta means, and in a class that rotates a part of each head
    what a missing partial_rotary_factor does."""
    rope = rope_parameters(hf_config, spec.get("position.rope_theta", 1e4))
    kind = check_value("rope_type", rope.pop("rope_type"), str).replace("default", "none")
    theta = check_value("rope_theta", rope.pop("rope_theta"), Positive)
    rotated = rope.pop("partial_rotary_factor")
    if rotated is None:
        rotated = spec.get("position.rotary_fraction", 1.0)
    check_value("partial_rotary_factor", rotated, NonNegative)
    if "position.rotary_fraction" not in spec and rotated != 1.0:
        raise HubError(f"partial_rotary_factor is {rotated}; only 1.0 is supported")
    if kind in ("yarn", "llama3"):
        default = hf_config.get("max_position_embeddings")
        original = rope.pop("original_max_position_embeddings", default)
        rope["original_max_position"] = original
    if kind == "yarn":
        rope = read_yarn(rope)
    scaling = {"kind": kind}
    checked = build("rope_type", SCALINGS, scaling | rope, shared={})  # refuses unknown keys
    if rope:
        scaling |= vars(checked)
    options = {"rope_theta": float(theta), "rotary_fraction": rotated, "scaling": scaling}
    return flatten(options, "position.")


def write_rope(spec: Spec, ids: HFConfig) -> HFConfig:
    options = {}
    for name, value in spec.items():
        if name.startswith(SCALING) and value is not None:
            options[name.removeprefix(SCALING)] = value
    kind = options.pop("kind")
    keys = {
        "rope_theta": spec["position.rope_theta"],
        "partial_rotary_factor": spec["position.rotary_fraction"],
    }
    if kind == "none":
        return keys
    if "original_max_position" in options:
        options["original_max_position_embeddings"] = options.pop("original_max_position")
    return keys | {"rope_scaling": {"rope_type": kind, **options}}


def evens_first(n: int) -> Tensor:
    """The channels of a class that rotates 2i with 2i + 1, in our order."""
    return torch.arange(n).unflatten(0, (-1, 2)).t().flatten()


def reordered(text: str, order: Tensor, factor: float = 1.0) -> Table:
    """Columns of tensors whose heads have their rows in this order, and scaled."""

    def reorder(rows: Tensor, order: Tensor) -> Tensor:
        heads = rows.unflatten(0, (-1, len(order)))
        return heads[:, order].flatten(0, 1)

    return columns(
        text,
        lambda rows: reorder(rows, order) * factor,
        lambda rows: reorder(rows, order.argsort()) * (1 / factor),
    )
