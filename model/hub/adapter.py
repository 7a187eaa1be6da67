"""Adapter: what LoRA has trained, in the format of PEFT."""

import json
from pathlib import Path

import torch

from configs.errors import HubError
from data.disk import atomic_folder
from model.adapt import adapters_of
from model.checkpoint import load_run
from model.hub.convert import read_hf_config
from model.hub.family import refuse_changes
from model.hub.files import is_hf_folder, resolve_folder
from model.hub.spec import spec_from_model
from model.hub.tensors import resolve
from model.weights import write_tensors


def export_adapter(run: str | Path, which: str, folder: Path) -> str:
    """Write the folder, and return how to load it. Adapters of maps that are one map in
    transformers become one, whose rank is the sum of theirs."""
    model, _, config, _ = load_run(run, which, merge=False)
    base = config["init_from"]
    if model.classes:
        raise HubError("--adapter has no place for the head of a classifier; leave it out")
    adapters = {f"{name}.weight": adapter for name, adapter in adapters_of(model).items()}
    if not adapters or not is_hf_folder(base):
        raise HubError("--adapter is for adapt=lora of a Hugging Face folder; leave it out")

    match = read_hf_config(resolve_folder(base))
    same = match.spec | {"context_length": model.context_length}  # it may be shorter
    refuse_changes(spec_from_model(model), same)

    model_type = match.family.model_type
    found = resolve(match.table(), adapters)
    written = {name for _, names in found.values() for name in names}
    if other := written ^ adapters.keys():
        raise HubError(
            f"{min(other)} is one with others in {model_type}: adapt all of them, or none; or leave "
            "out --adapter"
        )

    tensors = {}
    ranks = {}
    # GPT-2 stores its matrices transposed, and PEFT never transposes B
    is_transposed = model_type == "gpt2"
    for hf_name, (rule, names) in found.items():
        parts = [adapters[name] for name in names]
        rows = torch.block_diag(*[part.scale * part.up for part in parts])
        up = rule.to_hf(list(rows.split([len(part.up) for part in parts])))
        module = hf_name.removesuffix(".weight")
        prefix = f"base_model.model.{module}.lora_"
        down = torch.cat([part.down for part in parts])
        tensors[f"{prefix}A.weight"] = down
        tensors[f"{prefix}B.weight"] = (up.T if is_transposed else up).contiguous()
        ranks[module] = len(down)

    rank = min(ranks.values())
    peft = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "base_model_name_or_path": base,
        "fan_in_fan_out": is_transposed,
        "target_modules": list(ranks),
        "rank_pattern": ranks,
        "alpha_pattern": ranks,  # the scale is in the weights
    }

    with atomic_folder(folder) as draft:
        write_tensors(draft / "adapter_model.safetensors", tensors)
        (draft / "adapter_config.json").write_text(json.dumps(peft, indent=2), encoding="utf-8")
    return f"{folder}: for peft.PeftModel.from_pretrained(model, {str(folder)!r})"
