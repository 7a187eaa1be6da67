"""Tensors: those of a model, from the files of a folder and back, one for one."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from configs.errors import HubError
from model.hub.files import files_of

Tensors = dict[str, Tensor]


class TensorRule(NamedTuple):
    """How one tensor of transformers becomes one or several of a model, and back."""

    names: tuple[str, ...]  # in the model
    to_ours: Callable[[Tensor], list[Tensor]] = lambda weight: [weight]
    to_hf: Callable[[list[Tensor]], Tensor] = lambda parts: parts[0]


# by the name in transformers, where * stands for any layer, and a module for its weight and bias
Table = dict[str, str | TensorRule]
Change = Callable[[Tensor], Tensor]


def columns(text: str) -> Table:
    """A table from two columns of words."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def elementwise(
    name: str,
    to_ours: Change,
    to_hf: Change,
) -> TensorRule:
    return TensorRule(
        (name,),
        lambda weight: [to_ours(weight)],
        lambda parts: to_hf(parts[0]),
    )


def skip_rows(n: int, name: str) -> TensorRule:
    """The first n rows of the file are never used."""
    return elementwise(
        name,
        lambda rows: rows[n:],
        lambda rows: F.pad(rows, (0, 0, n, 0)),
    )


class Resolved(NamedTuple):
    rule: TensorRule
    names: list[str]  # in the model
    shape: tuple[int, ...]  # in the file


def resolve(
    table: Table,
    tensors: Tensors,
) -> dict[str, Resolved]:
    """By the names in the file, such that all of a model's tensors are covered."""
    resolved = {}
    left = set(tensors)
    for hf_name, entry in table.items():
        rule = TensorRule((entry,)) if isinstance(entry, str) else entry
        for suffix in (".weight", ".bias", ""):
            pattern = re.escape(rule.names[0] + suffix).replace(r"\*", r"(\d+)")
            for match in filter(None, [re.fullmatch(pattern, name) for name in tensors]):
                layer = match[1] if match.groups() else ""
                names = [name.replace("*", layer) + suffix for name in rule.names]
                parts = [torch.empty_like(tensors[name], device="meta") for name in names]
                shape = tuple(rule.to_hf(parts).shape)
                full_name = hf_name.replace("*", layer) + suffix
                resolved[full_name] = Resolved(rule, names, shape)
                left -= set(names)
    if left:
        raise HubError(f"no class of transformers has the weights {min(left)} of this model")
    return resolved


def read_weight(path: Path, name: str) -> Tensor:
    with safe_open(path, "pt") as file:
        weight = file.get_tensor(name)
    if not weight.is_floating_point() or weight.element_size() < 2:
        raise HubError(f"{path}: {name} is {weight.dtype}; only float16 and wider are supported")
    weight = weight.float()
    if not torch.isfinite(weight).all():
        raise HubError(f"{path}: {name} has values that are NaN or infinite in float32")
    return weight


def read_tensors(
    family: Any,
    table: Table,
    folder: Path,
    model_tensors: Tensors,
) -> Tensors:
    """A tensor in float32 for each of the model's. Missing and unknown ones are refused by name."""
    files = files_of(folder)
    resolved = resolve(table, model_tensors)
    # older files lack the prefix, or have gamma and beta
    prefix = "" if any(name.startswith(family.prefix) for name in files) else family.prefix
    names = {}
    for name in files:
        newer = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        names[prefix + newer] = name

    def load(name: str) -> Tensor:
        return read_weight(files[names[name]], names[name])

    copies = {}
    for name, of in family.aliases.items():
        if name in names.keys() - resolved:
            copies[name] = of
    sources = {name: name for name in resolved}
    for name, of in family.fallback.items():
        if name in resolved.keys() - names:
            sources[name] = of
    missing = {*sources.values()} - names.keys() - {None}
    unknown = names.keys() - resolved.keys() - copies.keys()
    for pattern in family.optional:
        unknown = {name for name in unknown if not re.fullmatch(pattern, name)}
    if missing:
        in_body = any(name.startswith(family.prefix) for name in missing)
        part = "" if in_body else "its language-modeling head: "
        raise HubError(f"{folder} lacks {part}{min(missing)}, {len(missing)} tensors in all")
    if unknown:
        what = f"unknown to a {family.model_type} model: {min(unknown)}"
        raise HubError(f"{folder} has {len(unknown)} tensors {what}")
    for name, of in copies.items():
        if not torch.equal(load(name), load(of)):
            raise HubError(f"{folder}: {name} and {of} differ, but config.json ties them")
    tensors: Tensors = {}
    for name, (rule, model_names, shape) in resolved.items():
        source = sources[name]
        weight = torch.zeros(shape) if source is None else load(source)
        if weight.shape != shape:
            got = tuple(weight.shape)
            raise HubError(f"{folder}: {name} is {got}; config.json implies {shape}")
        parts = [part.contiguous() for part in rule.to_ours(weight)]
        tensors |= zip(model_names, parts, strict=True)
    return tensors
