"""Layers that differ: model.layers names the kind of each layer, and model.layer_kinds says what a
kind changes in the parts of the model."""

from dataclasses import replace
from typing import Any

from torch import nn

from configs.registry import build
from configs.schema import ModelConfig
from model.position import Position
from model.positions import POSITIONS
from model.stack import Stack

PARTS = ("attention", "cross_attention", "ffn", "norm", "position", "block")


def merged(node: Any, changes: Any) -> Any:
    """Changes that name a kind replace the node, because another kind has other options. Others
    are merged into it, if there is one."""
    if not node or not isinstance(changes, dict) or "kind" in changes:
        return changes
    return node | {name: merged(node.get(name), changes[name]) for name in changes}


def layer_config(config: ModelConfig, name: str) -> ModelConfig:
    """The config of a layer of this kind."""
    parts = {}

    for part, changes in (config.layer_kinds[name] or {}).items():
        path = f"model.layer_kinds.{name}.{part}"
        node = getattr(config, part) if part in PARTS else None
        if node is None or not isinstance(changes, dict):
            raise ValueError(f"{path} is no group of settings of one of: {', '.join(PARTS)}")

        if changes.get("sliding_window") and node.get("sliding_window"):
            reason = f"replaces model.{part}.sliding_window in these layers"
            raise ValueError(f"{path}.sliding_window {reason}; set only one of them")
        parts[part] = merged(node, changes)
    return replace(config, **parts)


class LayeredStack(Stack):
    """A stack whose layers differ. Layers with the same position encoding and window share a
    context: Gemma 3 has two, one for its layers with a window and one for the others."""

    def layer_configs(self, config: ModelConfig) -> list[ModelConfig]:
        """The configs of the pattern, which is repeated over the depth and cut at its end."""
        names = config.layers or []
        known = config.layer_kinds

        if not names or {*names} - known.keys():
            raise ValueError(
                f"model.layers is {names}; expected names of model.layer_kinds: {', '.join(known)}"
            )

        pattern = [layer_config(config, name) for name in names]
        return [pattern[i % len(pattern)] for i in range(config.n_layers)]

    def make_positions(self, config: ModelConfig, shared: dict) -> None:
        """Build the encodings. If there are several, none may add to the embeddings, which all layers
        read."""
        pairs = zip(self.configs, self.blocks, strict=True)
        own = [(layer.position, block.attention.rotary_dim) for layer, block in pairs]

        # the first layer may have no position encoding, and no rotary channels
        usual = next((size for node, size in own if node == config.position), own[0][1])
        distinct = [(config.position, usual)]
        for key in own:
            if key not in distinct:
                distinct.append(key)

        encodings = []
        for node, rotary_dim in distinct:
            place = "model.position" if node == config.position else "model.layer_kinds.*.position"
            encodings.append(build(place, POSITIONS, node, shared | {"rotary_dim": rotary_dim}))

        self.context_keys = [
            (encodings[distinct.index(key)], block.attention.sliding_window)
            for key, block in zip(own, self.blocks, strict=True)
        ]

        self.position, *others = encodings

        for encoding in encodings if others else []:
            if type(encoding).embed is not Position.embed:
                name = type(encoding).__name__
                hint = "no kind in model.layers may have another position, or another head_dim"
                raise ValueError(f"{name} adds to the embeddings of all layers: with it, {hint}")

        self.layer_positions = nn.ModuleList(others)
