"""Layers that differ: model.layers names the kind of each layer, and model.layer_kinds says what a
kind changes in the parts of the model."""

from dataclasses import replace
from typing import Any

from configs.schema import ModelConfig

PARTS = ("attention", "cross_attention", "ffn", "norm", "position", "block")


def layer_names(config: ModelConfig) -> list[str | None]:
    """The kind of each layer: the pattern, repeated over the depth. None: as the model."""
    pattern = config.layers
    if pattern is None:
        return [None] * config.n_layers
    if not pattern or not config.layer_kinds.keys() >= set(pattern):
        known = ", ".join(config.layer_kinds)
        raise ValueError(f"model.layers is {pattern}; expected names of model.layer_kinds: {known}")
    if len(pattern) > config.n_layers:
        names = f"model.layers has {len(pattern)} names"
        raise ValueError(f"{names} for {config.n_layers} layers")
    return [pattern[i % len(pattern)] for i in range(config.n_layers)]


def layer_config(config: ModelConfig, name: str | None) -> ModelConfig:
    """The config of a layer of this kind."""
    if name is None:
        return config
    parts = {}
    for part, changes in (config.layer_kinds[name] or {}).items():
        node = getattr(config, part) if part in PARTS else None
        if node is None or not isinstance(changes, dict):
            path = f"model.layer_kinds.{name}.{part}"
            raise ValueError(f"{path} is no group of settings of one of: {', '.join(PARTS)}")
        parts[part] = merged(node, changes)
    return replace(config, **parts)


def merged(node: Any, changes: Any) -> Any:
    """The node with these changes. A dict that names a kind replaces the old one: its options are
    others."""
    if not isinstance(node, dict) or not isinstance(changes, dict) or "kind" in changes:
        return changes
    return node | {key: merged(node.get(key), value) for key, value in changes.items()}
