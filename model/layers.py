"""Layers that differ: model.layers names the kind of each layer, and model.layer_kinds says what a
kind changes in the parts of the model."""

from dataclasses import replace
from typing import Any

from configs.schema import ModelConfig

PARTS = ("attention", "cross_attention", "ffn", "norm", "position", "block")


def merged(node: Any, changes: Any) -> Any:
    """Changes that name a kind replace the node, for another kind has other options. Others are
    laid over it."""
    if not isinstance(changes, dict) or "kind" in changes:
        return changes
    return node | {name: merged(node.get(name), changes[name]) for name in changes}


def layer_config(config: ModelConfig, name: str) -> ModelConfig:
    """The config of a layer of this kind."""
    parts: dict[str, Any] = {}
    for part, changes in (config.layer_kinds[name] or {}).items():
        node = getattr(config, part) if part in PARTS else None
        if node is None or not isinstance(changes, dict):
            path = f"model.layer_kinds.{name}.{part}"
            raise ValueError(f"{path} is no group of settings of one of: {', '.join(PARTS)}")
        parts[part] = merged(node, changes)
    return replace(config, **parts)


def layer_configs(config: ModelConfig) -> list[ModelConfig]:
    """That of each layer: the pattern, repeated over the depth and cut at its end."""
    names = config.layers
    if names is None:
        return [config] * config.n_layers
    known = list(config.layer_kinds)
    if not names or not {*names} <= {*known}:
        expected = f"names of model.layer_kinds: {', '.join(known)}"
        raise ValueError(f"model.layers is {names}; expected {expected}")
    pattern = [layer_config(config, name) for name in names]
    return [pattern[i % len(pattern)] for i in range(config.n_layers)]
