"""RoPE in config.json: rope_theta with rope_scaling, or both in rope_parameters."""

import math

from configs.errors import HubError
from configs.registry import build
from model.hub.family import HFConfig
from model.hub.spec import Spec
from model.position import SCALINGS

KEYS = "rope_theta rope_scaling rope_parameters partial_rotary_factor"
KINDS = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def rope_parameters(hf_config: HFConfig) -> HFConfig:
    """All that config.json has about rope, in the newer form."""
    newer = hf_config.get("rope_parameters") or {}
    older = hf_config.get("rope_scaling") or {}
    theta = hf_config.get("rope_theta")
    rope = newer or older
    conflict = None
    if newer and older:
        conflict = "rope_scaling"
    elif newer and theta not in (None, newer.get("rope_theta", theta)):
        conflict = "rope_theta"
    if conflict:
        raise HubError(f"config.json: {conflict} conflicts with rope_parameters; remove one")
    return {
        "rope_type": rope.get("type") or "default",
        "rope_theta": theta or 10000.0,
        "partial_rotary_factor": hf_config.get("partial_rotary_factor") or 1.0,
        **{key: value for key, value in rope.items() if key != "type"},
    }


def yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_yarn(rope: HFConfig) -> None:
    """As options of our yarn."""
    mscale = rope.pop("mscale", None)
    mscale_all_dim = rope.pop("mscale_all_dim", None)
    if rope.pop("truncate", True) is not True:
        raise HubError("config.json: truncate is false; only true is supported")
    rope["beta_fast"] = rope.get("beta_fast") or 32.0
    rope["beta_slow"] = rope.get("beta_slow") or 1.0
    factor = rope.get("factor")
    if factor and mscale and mscale_all_dim and rope.get("attention_factor") is None:
        whole = yarn_mscale(factor, mscale_all_dim)
        rope["attention_factor"] = yarn_mscale(factor, mscale) / whole


def read_rope(hf_config: HFConfig) -> Spec:
    rope = rope_parameters(hf_config)
    kind = rope.pop("rope_type")
    theta = rope.pop("rope_theta")
    fraction = rope.pop("partial_rotary_factor")
    if kind not in KINDS:
        expected = "default, linear, llama3 or yarn"
        raise HubError(f"config.json: rope_type is {kind!r}; expected {expected}")
    if fraction != 1.0:
        raise HubError(f"config.json: partial_rotary_factor is {fraction}; only 1.0 is supported")
    if kind in ("yarn", "llama3"):
        default = hf_config.get("max_position_embeddings")
        original = rope.pop("original_max_position_embeddings", default)
        rope["original_max_position"] = original
    if kind == "yarn":
        read_yarn(rope)
    scaling = {"kind": KINDS[kind]}
    checked = build("rope", SCALINGS, scaling | rope, shared={})  # refuses unknown keys
    if kind != "default":
        scaling |= vars(checked)
    return {
        "position.rope_theta": float(theta),
        "position.rotary_fraction": 1.0,
        "position.scaling": scaling,
    }


def write_rope(spec: Spec) -> HFConfig:
    keys = {"rope_theta": spec["position.rope_theta"]}
    scaling = dict(spec["position.scaling"])
    kind = scaling.pop("kind")
    if kind == "none":
        return keys
    if "original_max_position" in scaling:
        scaling["original_max_position_embeddings"] = scaling.pop("original_max_position")
    options = {option: value for option, value in scaling.items() if value is not None}
    return keys | {"rope_scaling": {"rope_type": kind, **options}}
