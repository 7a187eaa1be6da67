"""The hub: weights to and from the Hugging Face formats.

Read facts.py, family.py, files.py and tensors.py, which all families share; then a family, gpt2.py first. A
family names its tensors, transposes and config keys once, for both directions. No part of transformers is
needed.
"""

from configs.errors import HubError
from model.hub.families.bart import BART
from model.hub.families.bert import BERT, ROBERTA
from model.hub.families.deepseek import DEEPSEEK
from model.hub.families.gpt2 import GPT2
from model.hub.families.llama import LLAMA, MISTRAL, NANOCHAT, QWEN3
from model.hub.families.t5 import T5
from model.hub.family import match, spec_from_hf
from model.hub.files import read_json, resolve_folder
from model.hub.spec import config_from_spec, spec_from_config

FAMILIES = {
    family.model_type: family
    for family in (GPT2, LLAMA, MISTRAL, QWEN3, NANOCHAT, DEEPSEEK, ROBERTA, BERT, T5, BART)
}


def family_of(theirs):
    kind = theirs.get("model_type")
    if kind not in list(FAMILIES):
        raise HubError(f"config.json: model_type is {kind!r}; choose one of: {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def read_hf_config(folder):
    """(family, config, config.json) of a folder."""
    theirs = read_json(folder / "config.json")
    family = family_of(theirs)
    try:
        config = config_from_spec(spec_from_hf(family, theirs), family.init)
    except HubError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, KeyError) as error:  # of another type
        raise HubError(
            f"{folder / 'config.json'} does not describe a {family.model_type} model ({error})"
        ) from None
    return family, config, theirs


def best_match(facts, ids, kind=None):
    """How a model with these facts goes into the first family that takes it, or into the one asked for."""
    if kind not in (None, *FAMILIES):
        raise ValueError(f"the family is {kind!r}; choose one of: {', '.join(FAMILIES)}")
    fits = [match(family, facts, ids) for name, family in FAMILIES.items() if kind in (None, name)]
    best = min(fits, key=lambda found: found.distance)
    if best.obstacles:
        more = f" (and {len(best.obstacles) - 1} more)" if len(best.obstacles) > 1 else ""
        raise HubError(
            f"no class of transformers fits this model: {best.obstacles[0]}{more}; that one comes nearest"
        )
    return best


__all__ = [
    "FAMILIES",
    "HubError",
    "best_match",
    "config_from_spec",
    "read_hf_config",
    "read_json",
    "resolve_folder",
    "spec_from_config",
]
