"""Models to and from Hugging Face formats, without transformers. spec.py describes a model,
family.py a class of transformers, tensors.py converts weights, convert.py folders; families/ has a
table per class."""

from difflib import get_close_matches
from pathlib import Path

from configs.errors import HubError
from configs.registry import Count, check_value
from model.hub.families import ALL, FAMILIES, LACKING
from model.hub.family import (
    MASKED_LM,
    Family,
    FamilyMatch,
    HFConfig,
    headless,
    match,
    spec_from_hf,
)
from model.hub.files import naming, open_tensors
from model.hub.spec import Spec
from model.weights import read_json


def read_hf_config(folder: Path) -> tuple[Family, Spec, HFConfig]:
    """(family, spec, config.json) of a folder."""
    path = folder / "config.json"
    hf_config = read_json(path)
    with naming(path):
        name = str(hf_config.get("model_type"))
        if name not in FAMILIES:
            raise HubError(f"model_type {name} is not supported; {explain_lack(name)}")
        check_value("vocab_size", hf_config.get("vocab_size"), Count)
        family = FAMILIES[name]
    if family.architecture.endswith(MASKED_LM) and not has_head(family, folder):
        family = headless(family)
    with naming(path):
        return family, spec_from_hf(family, hf_config), hf_config


def explain_lack(name: str) -> str:
    if name in LACKING:
        return f"it needs {LACKING[name]}"
    near = ", ".join(get_close_matches(name, FAMILIES) or FAMILIES)
    return f"did you mean one of: {near}"


def has_head(family: Family, folder: Path) -> bool:
    """The names of the model alone have a prefix, or none has."""
    in_model = {name.startswith(family.prefix) for name in open_tensors(folder)}
    return len(in_model) == 2


def first_match(
    spec: Spec, ids: HFConfig, name: str | None = None, origin: str | None = None
) -> FamilyMatch:
    """That of the family with this name, or of the first which takes such a model: the one that it
    was imported from, if it still does."""
    reasons = []
    families = sorted(ALL, key=lambda family: family.model_type != origin)
    for family in families if name is None else [FAMILIES[name]]:
        if name or family.spec["kind"] == spec["kind"]:
            try:
                return match(family, spec, ids)
            except ValueError as error:
                reasons.append(f"{family.architecture} ({error})")
    why = ", ".join(reasons) or f"none is for a model of the kind {spec['kind']}"
    raise HubError(f"no class of transformers fits this model: {why}")
