"""RoPE in config.json: rope_theta with rope_scaling, or both in rope_parameters."""

import math
from typing import Any

from configs.errors import HubError
from configs.registry import build
from model.position import SCALINGS

KEYS = "rope_theta rope_scaling rope_parameters partial_rotary_factor"
MAX_POSITION = "original_max_position"


def rope_parameters(hf_config: dict[str, Any]) -> dict[str, Any]:
    """All that config.json has about rope, in the newer form."""
    newer, older, theta = map(hf_config.get, ("rope_parameters", "rope_scaling", "rope_theta"))
    rope = dict(newer or older or {})
    if newer and (older or theta not in (None, rope.get("rope_theta", theta))):
        key = "rope_scaling" if older else "rope_theta"
        raise HubError(f"config.json: {key} conflicts with rope_parameters; remove one of them")
    rope.setdefault("rope_type", rope.pop("type", None) or "default")
    for key, default in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0)):
        rope.setdefault(key, hf_config.get(key) or default)
    return rope


def yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rope(hf_config: dict[str, Any]) -> dict[str, Any]:
    rope = rope_parameters(hf_config)
    kind, theta, fraction = (
        rope.pop(key) for key in ("rope_type", "rope_theta", "partial_rotary_factor")
    )
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise HubError(
            f"config.json: rope_type is {kind!r}; expected default, linear, llama3 or yarn"
        )
    if fraction != 1.0:
        raise HubError(f"config.json: partial_rotary_factor is {fraction}; only 1.0 is supported")
    if kind in ("yarn", "llama3"):
        rope[MAX_POSITION] = rope.pop(
            f"{MAX_POSITION}_embeddings", hf_config.get("max_position_embeddings")
        )
    if kind == "yarn":
        mscale, mscale_all_dim = rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
        if rope.pop("truncate", True) is not True:
            raise HubError("config.json: truncate is false; only true is supported")
        rope["beta_fast"], rope["beta_slow"] = (
            rope.get("beta_fast") or 32.0,
            rope.get("beta_slow") or 1.0,
        )
        factor = rope.get("factor")
        if rope.get("attention_factor") is None and mscale and mscale_all_dim and factor:
            rope["attention_factor"] = yarn_mscale(factor, mscale) / yarn_mscale(
                factor, mscale_all_dim
            )
    kind = "none" if kind == "default" else kind
    checked = vars(
        build("rope", SCALINGS, {"kind": kind, **rope}, shared={})
    )  # refuses unknown keys
    scaling = {"kind": kind} if kind == "none" else {"kind": kind, **checked}
    return {
        "position.rope_theta": float(theta),
        "position.rotary_fraction": 1.0,
        "position.scaling": scaling,
    }


def write_rope(spec: dict[str, Any]) -> dict[str, Any]:
    scaling = {
        option: value for option, value in spec["position.scaling"].items() if value is not None
    }
    keys, kind = {"rope_theta": spec["position.rope_theta"]}, scaling.pop("kind")
    if MAX_POSITION in scaling:
        scaling[f"{MAX_POSITION}_embeddings"] = scaling.pop(MAX_POSITION)
    return keys if kind == "none" else keys | {"rope_scaling": {"rope_type": kind, **scaling}}
