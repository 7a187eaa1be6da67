"""Flat: nested settings as {dotted key: value}."""

from typing import Any


def flatten(node: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested dicts to {dotted key: value}."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """The inverse of flatten."""
    nodes: dict[str, Any] = {}
    for name, value in flat.items():
        *path, option = name.split(".")
        node = nodes
        for part in path:
            node = node.setdefault(part, {})
        node[option] = value
    return nodes
