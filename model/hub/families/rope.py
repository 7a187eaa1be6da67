"""Rope: one spelling of it here, two there: rope_theta with rope_scaling, or both in rope_parameters."""

import math

from configs.errors import HubError

KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
OURS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
}


def parameters(theirs):
    """What config.json says of rope, in one dict."""
    found = dict(theirs.get("rope_parameters") or theirs.get("rope_scaling") or {})
    beside = theirs.get("rope_theta") not in (None, found.get("rope_theta", theirs.get("rope_theta")))
    if theirs.get("rope_parameters") and (theirs.get("rope_scaling") or beside):
        key = "rope_theta" if beside else "rope_scaling"
        raise HubError(f"config.json: {key} stands beside rope_parameters; leave one of them out")
    old = found.pop("type", None)
    found.setdefault("rope_type", old or "default")
    for key, usual in (("rope_theta", 10000.0), ("partial_rotary_factor", 1.0)):
        found.setdefault(key, theirs.get(key) or usual)
    return found


def growth(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rope(theirs):
    found = parameters(theirs)
    kind, base, fraction = (found.pop(key) for key in ("rope_type", "rope_theta", "partial_rotary_factor"))
    if kind not in list(OPTIONS):
        raise HubError(f"config.json: the rope type is {kind!r}; supported are {', '.join(OPTIONS)}")
    if fraction != 1.0:
        raise HubError(f"config.json: partial_rotary_factor is {fraction}; only 1.0 is supported")
    if kind == "yarn":
        mscale, of_all = found.pop("mscale", None), found.pop("mscale_all_dim", None)
        if found.pop("truncate", True) is not True:
            raise HubError("config.json: truncate is false; only yarn that truncates is supported")
        if found.get("attention_factor") is None and mscale and of_all and found.get("factor"):
            found["attention_factor"] = growth(found["factor"], mscale) / growth(found["factor"], of_all)
        found["beta_fast"], found["beta_slow"] = found.get("beta_fast") or 32.0, found.get("beta_slow") or 1.0
        found.setdefault("attention_factor", None)
    if kind in ("yarn", "llama3"):
        found.setdefault("original_max_position_embeddings", theirs.get("max_position_embeddings"))
    if odd := sorted(set(found) - set(OPTIONS[kind])):
        raise HubError(
            f"config.json: {odd[0]} is {found[odd[0]]!r}, which rope of type {kind} does not take here"
        )
    if lacking := [key for key in OPTIONS[kind] if found.get(key) is None and key != "attention_factor"]:
        raise HubError(f"config.json: rope of type {kind} has no {lacking[0]}")
    scaling = {OURS[key]: found[key] for key in OPTIONS[kind]}
    scaling = {"kind": "none" if kind == "default" else kind, **scaling}
    return {"position.rope_theta": float(base), "position.rotary_fraction": 1.0, "position.scaling": scaling}


def write_rope(facts):
    theirs = {"rope_theta": facts.get("position.rope_theta", 10000.0)}
    scaling = dict(facts.get("position.scaling") or {"kind": "none"})
    kind = scaling.pop("kind")
    if kind != "none":
        words = {ours: key for key, ours in OURS.items()}
        theirs["rope_scaling"] = {"rope_type": kind} | {
            words[option]: value for option, value in scaling.items() if value is not None
        }
    return theirs
