"""Fine-tuning: init_from= brings the model and the tokenizer of a run or of a Hugging Face
folder."""

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from configs.compose import CONFIGS, read_yaml, to_config
from configs.schema import Config
from data.tokenizers.tokenizer import Tokenizer
from model.checkpoint import init_run, init_settings, load_base, read_tokenizer, rebuilt

MODEL_GROUPS = ("model", "size", "block", "norm", "attention", "position", "ffn", "tokenizer")
TUNABLE = ("model.context_length", "model.dropout")


def with_model(node: DictConfig, keys: list[str]) -> DictConfig:
    """These settings with the model and tokenizer of init_from=; of the command line, whose keys
    these are, only a shorter context and dropout are kept."""
    for key in keys:
        group, *_ = re.split("[.@]", key)  # also of attention@model.cross_attention
        if group in MODEL_GROUPS and key not in TUNABLE:
            reason = "conflicts with init_from, which sets model and tokenizer"
            raise ValueError(f"{key} {reason}; remove it (only {' and '.join(TUNABLE)} may be set)")
    start = init_settings(node.init_from)
    changed: Any = OmegaConf.create(OmegaConf.to_container(node, resolve=True))
    changed.model = start["model"]
    changed.tokenizer = start["tokenizer"]
    for key in TUNABLE:
        if key in keys:
            OmegaConf.update(changed, key, OmegaConf.select(node, key))
    wanted = changed.model.context_length
    longest = start["model"]["context_length"]
    if isinstance(wanted, int) and wanted > longest:
        reason = f"and {node.init_from} has {longest}; it can only be shortened"
        raise ValueError(f"model.context_length is {wanted}, {reason}")
    return changed


def fine_tuned(
    node: DictConfig, keys: list[str], choices: dict[str, Any]
) -> tuple[Config, dict[str, Any]]:
    """(its config, the option of each group). Muon is chosen only by name: its rates would destroy
    a trained model."""
    changed = with_model(node, keys)
    kept = {group: choices[group] for group in choices if group not in MODEL_GROUPS}
    if "optimizer" not in keys and choices["optimizer"].startswith("muon"):
        option = "lora" if choices["adapt"] == "lora" else "finetune"
        kept["optimizer"] = option
        changed.optimizer = read_yaml(CONFIGS / f"optimizer/{option}.yaml")
        for key in keys:
            if key.startswith("optimizer."):
                OmegaConf.update(changed, key, OmegaConf.select(node, key))
    return to_config(changed), kept


def starting_point(
    config: Config, run: Path, is_resumed: bool
) -> tuple[nn.Module | None, Tokenizer | None]:
    """The (model, tokenizer) of init_from. A resumed run has its own tokenizer, and its checkpoint
    the weights, or those that adapt= trains."""
    if config.init_from is None:
        return None, None
    if "base" in config.adapt:
        model, tokenizer = load_base(config.init_from, config.model, config.adapt)
        return model, read_tokenizer(run) if is_resumed else tokenizer
    if is_resumed:
        return None, read_tokenizer(run)
    model, tokenizer, _ = init_run(config.init_from)
    return rebuilt(model, config.model), tokenizer
