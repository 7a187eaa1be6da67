"""Positions: the rope_parameters and layer_types of transformers."""

from typing import Any

from configs.flat import flatten, nested
from configs.registry import Positive, build, check_value
from model.hub.family import Keys
from model.hub.spec import Spec, merge_layers
from model.position import SCALINGS

ORIGINAL = "original_max_position_embeddings"
# keys of a rope that are not options of its scaling; "type" is an older name of rope_type
SHARED = ("rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL)
# layers that see all positions, and those that see the positions of a window
FULL, WINDOW = "full_attention", "sliding_attention"
SIZE = "attention.sliding_window"


def read_rope(config: Any, spec: Spec, kind: str = FULL) -> Spec:
    """The rope of all layers, or of this kind. The family of a class that rotates a part of each
    head has a rotary_fraction; others ignore partial_rotary_factor."""
    rope = config.rope_parameters.get(kind, config.rope_parameters)
    theta = float(check_value("rope_theta", rope["rope_theta"], Positive))
    scaling = {"kind": rope["rope_type"].replace("default", "none")}
    options = {name: value for name, value in rope.items() if name not in SHARED}
    if scaling["kind"] == "llama3":
        options["original_max_position"] = rope.get(ORIGINAL)
    checked = build("rope_type", SCALINGS, scaling | options)  # refuses unknown keys
    if options:
        scaling |= vars(checked)
    rotated = rope.get("partial_rotary_factor", 1.0) if "position.rotary_fraction" in spec else 1.0
    position = {"rope_theta": theta, "rotary_fraction": rotated, "scaling": scaling}
    return flatten(position, "position.")


def rope_keys(spec: Spec) -> Keys:
    position = nested(spec)["position"]
    scaling = position["scaling"]
    rope = {
        "rope_type": scaling.pop("kind").replace("none", "default"),
        "rope_theta": position["rope_theta"],
        "partial_rotary_factor": position["rotary_fraction"],
    }
    if rope["rope_type"] == "default":  # the options are those of other layers: split_layers()
        return rope
    for name, value in scaling.items():
        if value is not None:
            rope[name.replace("original_max_position", ORIGINAL)] = value
    return rope


def write_rope(spec: Spec) -> Keys:
    return {"rope_parameters": rope_keys(spec)}


def windows(config: Any) -> list[int | None]:
    """The window of each layer. ModernBERT counts both sides: half of local_attention is on each,
    here and there."""
    window = getattr(config, "sliding_window", None)
    window = getattr(config, "local_attention", window)
    types = getattr(config, "layer_types", None) or [WINDOW] * config.num_hidden_layers
    return [window if kind == WINDOW else None for kind in types]


def read_layers(config: Any, spec: Spec) -> Spec:
    layers = []
    for kind, window in zip(config.layer_types, windows(config), strict=True):
        layers.append({SIZE: window, **read_rope(config, spec, kind)})
    return merge_layers(layers)


def split_layers(spec: Spec) -> list[Spec]:
    """The spec of each layer. Changes remove no option, so one may have what only others use."""
    return [spec | changes for changes in spec.get("layers") or [{}] * spec["n_layers"]]


def write_layers(spec: Spec) -> Keys:
    layers = split_layers(spec)
    keys: Keys = {"layer_types": [WINDOW if layer.get(SIZE) else FULL for layer in layers]}
    for layer in layers:
        if layer.get(SIZE):
            keys.setdefault("sliding_window", layer[SIZE])
    return keys | write_rope(layers[0])


def write_ropes(spec: Spec) -> Keys:
    """A rope for each type of layer."""
    keys = write_layers(spec)
    ropes = map(rope_keys, split_layers(spec))
    return keys | {"rope_parameters": dict(zip(keys["layer_types"], ropes, strict=True))}
