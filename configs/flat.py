"""Flat: nested settings as {dotted key: value}."""

from typing import Any

Settings = dict[str, Any]


def flatten(node: Settings, path: str = "") -> Settings:
    """Flatten nested dicts to {dotted key: value}."""
    flat: Settings = {}
    for key, value in node.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def nested(flat: Settings) -> Settings:
    """The inverse of flatten."""
    nodes: Settings = {}
    for name, value in flat.items():
        *path, option = name.split(".")
        node = nodes
        for part in path:
            node = node.setdefault(part, {})
        node[option] = value
    return nodes
