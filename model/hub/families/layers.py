"""layer_types in config.json: which layers see all positions, and which only those of a window."""

from collections.abc import Callable
from typing import Any

from configs.errors import HubError
from configs.registry import Count, check_value
from model.hub.families.rope import read_rope
from model.hub.family import HFConfig
from model.hub.spec import Spec

FULL, WINDOW = TYPES = ["full_attention", "sliding_attention"]
SIZE = "attention.sliding_window"
Thetas = dict[str, tuple[str, float]]  # {type: (its key before rope_parameters, default)}


def read_types(hf_config: HFConfig, spec: Spec, has_window: Callable[[int], Any]) -> list[str]:
    """Of each layer. has_window: what a missing layer_types means."""
    n_layers = spec["n_layers"]
    types = hf_config.get("layer_types")
    if types is None:
        types = [WINDOW if has_window(layer) else FULL for layer in range(n_layers)]
    if not isinstance(types, list) or len(types) != n_layers or not all(t in TYPES for t in types):
        expected = f"expected {n_layers} of: {', '.join(TYPES)}"
        raise HubError(f"layer_types is {types!r:.70}; {expected}")
    return types


def read_windows(hf_config: HFConfig, types: list[str], key: str = "sliding_window") -> list[Spec]:
    """Of each layer. key: that of the size."""
    window = hf_config[key]
    if WINDOW in types:
        check_value(key, window, Count)
    return [{SIZE: window if kind == WINDOW else None} for kind in types]


def read_ropes(hf_config: HFConfig, types: list[str], thetas: Thetas) -> list[Spec]:
    """Of each layer; rope_parameters may be by type."""
    by_type = hf_config.get("rope_parameters") or {}
    if unknown := by_type.keys() - {*TYPES}:
        raise HubError(f"rope_parameters has {min(unknown)}; expected {' and '.join(TYPES)}")
    ropes = {}
    for kind, (key, theta) in thetas.items():
        own = check_value(f"rope_parameters.{kind}", by_type.get(kind), dict | None)
        rope = {"rope_theta": hf_config.get(key, theta)} | (own or {})
        if kind == FULL:
            rope |= hf_config.get("rope_scaling") or {}
        alone = {"rope_theta": None, "rope_scaling": None, "rope_parameters": rope}
        ropes[kind] = read_rope(hf_config | alone)
    return [ropes[kind] for kind in types]


def split_layers(spec: Spec) -> list[Spec]:
    """The spec of each layer."""
    return [spec | changes for changes in spec.get("layers") or [{}] * spec["n_layers"]]


def write_windows(spec: Spec) -> tuple[list[str], int | None]:
    """layer_types, and the only size, or one of several."""
    sizes = [layer.get(SIZE) for layer in split_layers(spec)]
    return [WINDOW if size else FULL for size in sizes], max(filter(None, sizes), default=None)


def write_ropes(spec: Spec, thetas: Thetas) -> HFConfig:
    keys = {}
    for layer in split_layers(spec):
        key, _ = thetas[WINDOW if layer.get(SIZE) else FULL]
        keys[key] = layer["position.rope_theta"]
    return keys
