"""Models to and from Hugging Face formats, without transformers. spec.py describes a model,
family.py a class of transformers, tensors.py converts weights, convert.py folders; families/ has a
table per class."""

from pathlib import Path

from configs.errors import HubError
from configs.registry import Count, check_value
from model.checkpoint import read_json
from model.hub.families.bart import BART
from model.hub.families.bert import BERT, ROBERTA
from model.hub.families.deepseek import DEEPSEEK
from model.hub.families.gpt2 import GPT2
from model.hub.families.llama import LLAMA, MISTRAL, NANOCHAT, QWEN3
from model.hub.families.moe import MIXTRAL, QWEN3_MOE
from model.hub.families.t5 import T5
from model.hub.family import Family, FamilyMatch, HFConfig, match, spec_from_hf
from model.hub.files import naming
from model.hub.spec import Spec

# export takes the first that fits: LLAMA before MISTRAL, and ROBERTA before BERT, fit fewer models
ALL = (GPT2, LLAMA, MISTRAL, NANOCHAT, QWEN3, DEEPSEEK, ROBERTA, BERT, T5, BART, MIXTRAL, QWEN3_MOE)
FAMILIES = {family.model_type: family for family in ALL}


def read_hf_config(folder: Path) -> tuple[Family, Spec, HFConfig]:
    """(family, spec, config.json) of a folder."""
    path = folder / "config.json"
    hf_config = read_json(path)
    with naming(path):
        name = hf_config.get("model_type")
        if name not in FAMILIES:
            raise HubError(f"model_type is {name!r}; expected one of: {', '.join(FAMILIES)}")
        check_value("vocab_size", hf_config.get("vocab_size"), Count)
        return FAMILIES[name], spec_from_hf(FAMILIES[name], hf_config), hf_config


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
