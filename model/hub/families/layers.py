"""layer_types in config.json: which layers see all positions, and which only those of a window."""

from collections.abc import Callable
from typing import Any

from configs.errors import HubError
from configs.registry import Count, check_value
from model.hub.families.rope import read_rope
from model.hub.family import HFConfig
from model.hub.spec import Spec, merge_layers

FULL, WINDOW = TYPES = ["full_attention", "sliding_attention"]
SIZE = "attention.sliding_window"
Thetas = dict[str, str]  # {type: its key before rope_parameters}, if each type has a rope


def read_layers(
    hf_config: HFConfig,
    spec: Spec,
    has_window: Callable[[int], Any],
    size_key: str = "sliding_window",
    thetas: Thetas | None = None,
) -> Spec:
    """has_window: what a missing layer_types means."""
    n_layers = spec["n_layers"]
    types = hf_config.get("layer_types")
    if types is None:
        types = [WINDOW if has_window(layer) else FULL for layer in range(n_layers)]
    if not isinstance(types, list) or len(types) != n_layers or not all(t in TYPES for t in types):
        expected = f"expected {n_layers} of: {', '.join(TYPES)}"
        raise HubError(f"layer_types is {types!r:.70}; {expected}")
    size = hf_config[size_key]
    if WINDOW in types:
        check_value(size_key, size, Count)
    changes: dict[str, Spec] = {FULL: {SIZE: None}, WINDOW: {SIZE: size}}
    for kind, key in (thetas or {}).items():
        changes[kind] |= read_rope_of(kind, hf_config, hf_config[key])
    return merge_layers([changes[kind] for kind in types])


def read_rope_of(kind: str, hf_config: HFConfig, theta: float) -> Spec:
    """That of one type, which rope_parameters may have by types."""
    by_type = hf_config.get("rope_parameters") or {}
    if unknown := by_type.keys() - {*TYPES}:
        raise HubError(f"rope_parameters has {min(unknown)}; expected {' and '.join(TYPES)}")
    own = check_value(f"rope_parameters.{kind}", by_type.get(kind), dict | None)
    rope = {"rope_theta": theta} | (own or {})
    if kind == FULL:
        rope |= hf_config.get("rope_scaling") or {}
    alone = {"rope_theta": None, "rope_scaling": None, "rope_parameters": rope}
    return read_rope(hf_config | alone, {})


def split_layers(spec: Spec) -> list[Spec]:
    """The spec of each layer."""
    return [spec | changes for changes in spec.get("layers") or [{}] * spec["n_layers"]]


def write_layers(
    spec: Spec, size_key: str = "sliding_window", thetas: Thetas | None = None
) -> HFConfig:
    layers = split_layers(spec)
    types = [WINDOW if layer.get(SIZE) else FULL for layer in layers]
    keys: HFConfig = {"layer_types": types}
    for kind, layer in zip(types, layers, strict=True):
        if kind == WINDOW:
            keys[size_key] = layer[SIZE]
        if thetas:
            keys[thetas[kind]] = layer["position.rope_theta"]
    return keys
