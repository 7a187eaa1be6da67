"""layer_types: which layers see all positions, and which only those of a window."""

from typing import Any

from configs.errors import HubError
from model.hub.families.rope import rope_keys, rope_options
from model.hub.family import Keys
from model.hub.spec import Spec, merge_layers

FULL, WINDOW = "full_attention", "sliding_attention"
SIZE = "attention.sliding_window"


def window_of(config: Any) -> int | None:
    """ModernBERT counts both sides: half of local_attention is on each, here and there."""
    window = getattr(config, "sliding_window", None)
    return getattr(config, "local_attention", window)


def read_layers(config: Any, spec: Spec) -> Spec:
    """There may be a rope for each type of layer, or one for all."""
    ropes = config.rope_parameters
    changes: dict[str, Spec] = {}
    for kind in {*config.layer_types}:
        size = window_of(config) if kind == WINDOW else None
        rope = rope_options(ropes.get(kind, ropes), spec)
        changes[kind] = {SIZE: size} | rope
    return merge_layers([changes[kind] for kind in config.layer_types])


def split_layers(spec: Spec) -> list[Spec]:
    """The spec of each layer."""
    return [spec | changes for changes in spec.get("layers") or [{}] * spec["n_layers"]]


def write_layers(spec: Spec) -> Keys:
    layers = split_layers(spec)
    keys: Keys = {"layer_types": [WINDOW if layer.get(SIZE) else FULL for layer in layers]}
    if sizes := [layer[SIZE] for layer in layers if layer.get(SIZE)]:
        keys["sliding_window"] = sizes[0]
    return keys | {"rope_parameters": rope_keys(layers[0])}


def write_ropes(spec: Spec) -> Keys:
    """A rope for each type of layer."""
    keys = write_layers(spec)
    ropes = map(rope_keys, split_layers(spec))
    return keys | {"rope_parameters": dict(zip(keys["layer_types"], ropes, strict=True))}


def check_windows(config: Any, spec: Spec) -> None:
    """A text that is compared may be shorter than a window, so that its logits say nothing."""
    layers = split_layers(spec)
    window = window_of(config)
    types = getattr(config, "layer_types", None) or [WINDOW] * len(layers)
    sizes = [window if kind == WINDOW else None for kind in types]
    if sizes != [layer.get(SIZE) for layer in layers]:
        reason = f"sliding_window is {window}, and layer_types is {types!r:.70}"
        raise HubError(f"{reason}; a model of this class has other windows")
