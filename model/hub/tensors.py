"""Tensors: those of a model, from the files of a folder and back, one for one."""

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open

from configs.errors import HubError
from model.hub.files import files_of


class TensorRule(NamedTuple):
    """How one tensor of transformers becomes one or several of a model, and back."""

    names: tuple  # in the model
    to_ours: Callable = lambda weight: [weight]
    to_hf: Callable = lambda parts: parts[0]


def elementwise(name, to_ours, to_hf):
    return TensorRule((name,), lambda weight: [to_ours(weight)], lambda parts: to_hf(parts[0]))


def skip_rows(n, name):
    """The first n rows of the file are never used."""
    return elementwise(name, lambda rows: rows[n:], lambda rows: F.pad(rows, (0, 0, n, 0)))


def resolve(table, tensors):
    """{name in the file: (rule, names in the model, shape in the file)} that covers all of a model's tensors.
    In the table, * stands for any layer, and a module for its weight and its bias."""
    resolved, covered = {}, set()
    for hf_name, rule in table.items():
        rule = TensorRule((rule,)) if isinstance(rule, str) else rule
        for suffix in (".weight", ".bias", ""):
            pattern = re.escape(rule.names[0] + suffix).replace(r"\*", r"(\d+)")
            for match in filter(None, (re.fullmatch(pattern, name) for name in tensors)):
                layer = match[1] if match.groups() else ""
                names = [name.replace("*", layer) + suffix for name in rule.names]
                parts = [torch.empty_like(tensors[name], device="meta") for name in names]
                resolved[hf_name.replace("*", layer) + suffix] = (
                    rule,
                    names,
                    tuple(rule.to_hf(parts).shape),
                )
                covered |= set(names)
    assert covered == set(tensors), f"no rule for {sorted(set(tensors) - covered)}"
    return resolved


def read_tensors(family, table, folder, model_tensors):
    """A tensor in float32 for each of the model's. Missing and unknown ones are refused by name."""
    files, resolved = files_of(folder), resolve(table, model_tensors)
    # older files lack the prefix, or have gamma and beta
    prefix = "" if any(name.startswith(family.prefix) for name in files) else family.prefix
    names = {
        re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", prefix + n)): n for n in files
    }

    def load(name):
        with safe_open(files[names[name]], "pt") as file:
            weight = file.get_tensor(names[name])
        if not weight.is_floating_point() or weight.element_size() < 2:
            raise HubError(
                f"{folder}: {name} is {weight.dtype}; only float16 and wider are supported"
            )
        weight = weight.float()
        if not torch.isfinite(weight).all():
            raise HubError(f"{folder}: {name} has values that are NaN or infinite in float32")
        return weight

    copies = {
        name: of for name, of in family.aliases.items() if name in names and name not in resolved
    }
    fallback = {
        n: of for n, of in family.fallback.items() if n not in names and of in (None, *names)
    }
    missing = sorted(resolved.keys() - names.keys() - fallback.keys())
    unknown = sorted(names.keys() - resolved.keys() - copies.keys())
    unknown = [name for name in unknown if not any(re.fullmatch(p, name) for p in family.optional)]
    in_body = any(name.startswith(family.prefix) for name in missing)
    lacks = "lacks" if in_body else "lacks its language-modeling head:"
    for problem, wrong in ((lacks, missing), ("has an unknown tensor:", unknown)):
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise HubError(f"{folder} {problem} {wrong[0]}{more} (a {family.model_type} model)")
    tensors = {}
    for name, (rule, model_names, shape) in resolved.items():
        source = fallback.get(name, name)
        weight = torch.zeros(shape) if source is None else load(source)
        if tuple(weight.shape) != shape:
            raise HubError(
                f"{folder}: {name} is {tuple(weight.shape)}; config.json implies {shape}"
            )
        tensors |= zip(
            model_names, (part.contiguous() for part in rule.to_ours(weight)), strict=True
        )
    for name, of in copies.items():
        if not torch.equal(load(name), load(of)):
            raise HubError(f"{folder}: {name} and {of} differ, but config.json ties them")
    return tensors
