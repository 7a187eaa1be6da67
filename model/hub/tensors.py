"""Tensors: those of a model, from the files of a folder and back, one for one."""

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from safetensors import safe_open

from configs.errors import HubError
from model.hub.files import files_of


class TensorRule(NamedTuple):
    """How one tensor of transformers becomes one or several of a model, and back."""

    names: tuple  # in the model
    to_ours: Callable
    to_hf: Callable


def elementwise(name, to_ours, to_hf):
    return TensorRule((name,), lambda weight: [to_ours(weight)], lambda parts: to_hf(parts[0]))


def transpose(weight):
    return weight.T if weight.ndim == 2 else weight


def transposed(name):
    return elementwise(name, transpose, transpose)


def packed_qkv(attention):
    """Query, key and value side by side, transposed."""
    names = tuple(f"{attention}.{part}" for part in ("query", "key", "value"))
    return TensorRule(
        names, lambda weight: transpose(weight).chunk(3), lambda parts: transpose(torch.cat(parts))
    )


def skip_rows(n, name):
    """The first n rows of the file are never used."""
    return elementwise(
        name, lambda rows: rows[n:], lambda rows: torch.cat([rows.new_zeros(n, *rows.shape[1:]), rows])
    )


class ResolvedTensor(NamedTuple):
    rule: TensorRule
    names: list[str]  # in the model
    shape: tuple  # in the file


def resolve(table, tensors):
    """{name in the file: ResolvedTensor} that covers all of a model's tensors. In the table, * stands for any
    layer, and a module for its weight and its bias."""
    resolved, covered = {}, set()
    for hf_name, rule in table.items():
        if isinstance(rule, str):
            rule = elementwise(rule, lambda weight: weight, lambda weight: weight)
        for suffix in (".weight", ".bias", ""):
            pattern = re.escape(rule.names[0] + suffix).replace(r"\*", r"(\d+)")
            for match in filter(None, (re.fullmatch(pattern, name) for name in tensors)):
                layer = match[1] if match.groups() else ""
                names = [name.replace("*", layer) + suffix for name in rule.names]
                parts = [torch.empty_like(tensors[name], device="meta") for name in names]
                shape = tuple(rule.to_hf(parts).shape)
                resolved[hf_name.replace("*", layer) + suffix] = ResolvedTensor(rule, names, shape)
                covered |= set(names)
    assert covered == set(tensors), f"no rule for {sorted(set(tensors) - covered)}"
    return resolved


def to_hf_tensors(table, tensors):
    return {
        hf_name: rule.to_hf([tensors[name] for name in names]).contiguous()
        for hf_name, (rule, names, _) in resolve(table, tensors).items()
    }


def normalized_names(family, files):
    """{usual name: name in the file}; older files lack the prefix, or have gamma and beta."""
    no_prefix = family.prefix and not any(name.startswith(family.prefix) for name in files)
    names = {}
    for name in files:
        usual = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        names[family.prefix + usual if no_prefix else usual] = name
    return names


def read_tensors(family, table, folder, model_tensors):
    """A tensor in float32 for each of the model's. Missing and unknown ones are refused by name."""
    files = files_of(folder)
    names, resolved = normalized_names(family, files), resolve(table, model_tensors)

    def load(name):
        with safe_open(files[names[name]], "pt") as file:
            weight = file.get_tensor(names[name])
        if not weight.is_floating_point() or weight.element_size() < 2:
            raise HubError(f"{folder}: {name} is {weight.dtype}; only float16 and wider are supported")
        return weight.float()

    copies = {name: of for name, of in family.aliases.items() if name in names and name not in resolved}
    zeros = set()
    for name in resolved.keys() & family.fallback.keys() - names.keys():
        if family.fallback[name] is None:
            zeros.add(name)
        elif family.fallback[name] in names:
            names[name] = names[family.fallback[name]]
    missing = sorted(resolved.keys() - names.keys() - zeros)
    unknown = sorted(names.keys() - resolved.keys() - copies.keys())
    unknown = [name for name in unknown if not any(re.fullmatch(p, name) for p in family.optional)]
    for problem, wrong in (("lacks", missing), ("has an unknown tensor:", unknown)):
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise HubError(f"{folder} {problem} {wrong[0]}{more} (a {family.model_type} model)")
    tensors = {}
    for name, (rule, ours, shape) in resolved.items():
        weight = torch.zeros(shape) if name in zeros else load(name)
        if tuple(weight.shape) != shape:
            raise HubError(f"{folder}: {name} is {tuple(weight.shape)}; config.json implies {shape}")
        tensors |= zip(ours, (part.contiguous() for part in rule.to_ours(weight)), strict=True)
    for name, of in copies.items():
        if not torch.equal(load(name), load(of)):
            raise HubError(f"{folder}: {name} and {of} differ, but config.json ties them")
    return tensors
