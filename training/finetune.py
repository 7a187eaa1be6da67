"""Fine-tuning: init_from= brings the model and the tokenizer of a run or of a Hugging Face folder."""

import re
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from configs.cli import print0, warn
from configs.compose import CONFIGS, read_yaml, to_config
from configs.schema import Config
from data.corpus import build_data
from model.pretrained import init_settings, load_pretrained
from model.transformer import build_model
from model.weights import assign_weights, frozen_tensors, model_tensors

MODEL_GROUPS = ("model", "size", "block", "norm", "attention", "position", "ffn", "tokenizer")
TUNABLE = r"model\.(context_length|dropout|head\.pooling|([a-z_]+\.)?kind)|optimizer\..+"


def with_model(node: DictConfig, keys: list[str], choices: dict) -> tuple[DictConfig, dict]:
    """Put the model and tokenizer of init_from= in place of those that Hydra composed. Returns (the
    settings, the option of each group that they still have). node: what Hydra composed; keys: those
    of the command line; choices: the option of each group."""
    check_keys(keys)
    found = init_settings(node.init_from)
    settings: Any = OmegaConf.create(OmegaConf.to_container(node, resolve=True))
    settings.model = found["model"]
    settings.tokenizer = found["tokenizer"]
    choices = {group: choices[group] for group in choices if group not in MODEL_GROUPS}

    # Muon is used only if it is named: its learning rates would destroy a trained model
    if "optimizer" not in keys and node.optimizer.kind == "muon":
        choices["optimizer"] = "lora" if node.adapt.kind == "lora" else "finetune"
        settings.optimizer = read_yaml(CONFIGS / f"optimizer/{choices['optimizer']}.yaml")

    for key in keys:
        if re.fullmatch(TUNABLE, key):  # the command line has the last word
            OmegaConf.update(settings, key, OmegaConf.select(node, key))

    wanted = settings.model.context_length
    longest = found["model"]["context_length"]
    if isinstance(wanted, int | float) and wanted > longest:  # 1e3 is an integer, too
        raise ValueError(
            f"model.context_length is {wanted}, and {node.init_from} has {longest}; it can only be "
            "shortened"
        )

    if "model.head.pooling" in keys:  # then it has to fit the data, as that of a new model
        build_data(replace(to_config(settings), init_from=None))
    return settings, choices


def check_keys(keys: list[str]) -> None:
    """Refuse settings of the model and tokenizer, except those in TUNABLE."""
    for key in keys:
        group, *_ = re.split("[.@]", key)  # also of attention@model.cross_attention
        if group in MODEL_GROUPS and not re.fullmatch(TUNABLE, key):
            raise ValueError(
                f"{key} conflicts with init_from, which sets model and tokenizer; remove it "
                "(only context_length, dropout, head.pooling and a kind may be set)"
            )

    if "experiment" in keys:
        warn(
            "init_from sets model and tokenizer: those of experiment= are not used, nor is its Muon, "
            "unless optimizer= names it"
        )


def starting_model(config: Config) -> nn.Module:
    """A model of this config with the weights of init_from. It may have another dropout, a shorter
    context, or parts with additional tensors, which are initialized."""
    found: Any = load_pretrained(str(config.init_from)).model
    weights = model_tensors(found) | frozen_tensors(found)
    if config.model.classes and not found.classes:  # another head replaces its own
        weights = {name: weights[name] for name in weights if not name.startswith("head.")}

    vocab_size = found.embedding.table.num_embeddings
    with torch.device("meta"):
        model = build_model(config.model, vocab_size)
    wanted = model_tensors(model) | frozen_tensors(model)
    if lost := sorted(weights.keys() - wanted.keys()):
        raise ValueError(
            f"{lost[0]} of init_from is not in the new model; remove the kind= that has no place for "
            "it"
        )

    if added := sorted(wanted.keys() - weights.keys()):
        print0(f"newly initialized: {', '.join(added)}")
        model = build_model(config.model, vocab_size, config.seed)

    length = config.model.context_length
    tensors = {name: copied(name, weights[name], wanted[name], length) for name in weights}
    return assign_weights(model, tensors)


def copied(name: str, tensor: Tensor, wanted: Tensor, context_length: int) -> Tensor:
    """A copy of a tensor; a table of positions is cut to a shorter context."""
    if name.endswith("position.table.weight") and len(wanted) == context_length:
        tensor = tensor[:context_length]
    if tensor.shape != wanted.shape:
        shapes = f"{list(tensor.shape)} in init_from and {list(wanted.shape)} in the new model"
        raise ValueError(f"{name} has the shape {shapes}; remove the kind that changes it")
    return tensor.detach().clone()
