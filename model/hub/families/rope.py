"""RoPE in config.json: rope_theta with rope_scaling, or both in rope_parameters."""

import math

from configs.errors import HubError

KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
}


def rope_parameters(hf_config):
    """All that config.json has about rope, in the newer form."""
    rope = dict(hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {})
    if hf_config.get("rope_parameters"):
        same_theta = hf_config.get("rope_theta") in (
            None,
            rope.get("rope_theta", hf_config.get("rope_theta")),
        )
        if hf_config.get("rope_scaling") or not same_theta:
            key = "rope_scaling" if same_theta else "rope_theta"
            raise HubError(f"config.json: {key} conflicts with rope_parameters; remove one of them")
    old_type = rope.pop("type", None)
    rope.setdefault("rope_type", old_type or "default")
    for key, default in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0)):
        rope.setdefault(key, hf_config.get(key) or default)
    return rope


def yarn_mscale(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rope(hf_config):
    rope = rope_parameters(hf_config)
    kind, theta, fraction = (rope.pop(key) for key in ("rope_type", "rope_theta", "partial_rotary_factor"))
    if kind not in list(OPTIONS):
        raise HubError(f"config.json: rope_type is {kind!r}; expected one of: {', '.join(OPTIONS)}")
    if fraction != 1.0:
        raise HubError(f"config.json: partial_rotary_factor is {fraction}; only 1.0 is supported")
    if kind == "yarn":
        mscale, mscale_all_dim = rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
        if rope.pop("truncate", True) is not True:
            raise HubError("config.json: truncate is false; only true is supported")
        rope["beta_fast"], rope["beta_slow"] = rope.get("beta_fast") or 32.0, rope.get("beta_slow") or 1.0
        rope.setdefault("attention_factor", None)
        if rope["attention_factor"] is None and mscale and mscale_all_dim and rope.get("factor"):
            ratio = yarn_mscale(rope["factor"], mscale) / yarn_mscale(rope["factor"], mscale_all_dim)
            rope["attention_factor"] = ratio
    if kind in ("yarn", "llama3"):
        rope.setdefault("original_max_position_embeddings", hf_config.get("max_position_embeddings"))
    if unknown := sorted(set(rope) - set(OPTIONS[kind])):
        raise HubError(
            f"config.json: {unknown[0]} is {rope[unknown[0]]!r}, which rope_type {kind} does not take"
        )
    if missing := [key for key in OPTIONS[kind] if rope.get(key) is None and key != "attention_factor"]:
        raise HubError(f"config.json: rope_type {kind} needs {missing[0]}")
    scaling = {"kind": "none" if kind == "default" else kind}
    scaling |= {key.removesuffix("_embeddings"): rope[key] for key in OPTIONS[kind]}
    return {"position.rope_theta": float(theta), "position.rotary_fraction": 1.0, "position.scaling": scaling}


def write_rope(spec):
    scaling = dict(spec["position.scaling"] or {"kind": "none"})
    kind = scaling.pop("kind")
    if kind == "none":
        return {"rope_theta": spec["position.rope_theta"]}
    options = {key: scaling[key.removesuffix("_embeddings")] for key in OPTIONS[kind]}
    options = {key: value for key, value in options.items() if value is not None}
    return {"rope_theta": spec["position.rope_theta"], "rope_scaling": {"rope_type": kind, **options}}
