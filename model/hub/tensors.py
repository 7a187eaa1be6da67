"""Tensors: a table of names becomes files, and files become tensors that a model takes, one for one."""

import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from configs.errors import HubError
from model.hub.files import files_of


class TensorRule(NamedTuple):
    """A tensor of theirs and those of ours that it holds: `here` takes it apart, `there` puts it together."""

    ours: tuple
    here: Callable
    there: Callable


def rename(name):
    return TensorRule((name,), lambda weight: [weight], lambda parts: parts[0])


def elementwise(name, change, back):
    """One tensor, changed; a bias likewise."""
    return TensorRule((name,), lambda weight: [change(weight)], lambda parts: back(parts[0]))


def transpose(weight):
    return weight.T if weight.ndim == 2 else weight


def transposed(name):
    return elementwise(name, transpose, transpose)


def packed_qkv(*names):
    """Side by side, and transposed."""
    return TensorRule(
        names, lambda weight: transpose(weight).chunk(len(names)), lambda parts: transpose(torch.cat(parts))
    )


def skip_rows(n, name):
    """The first n rows of theirs are never read."""
    return elementwise(
        name, lambda rows: rows[n:], lambda rows: torch.cat([rows.new_zeros(n, *rows.shape[1:]), rows])
    )


class ResolvedTensor(NamedTuple):
    """A tensor of theirs as a model needs it."""

    way: TensorRule
    ours: list[str]
    shape: tuple


def resolve(table, tensors):
    """{their name: Place} for each of a model's tensors. A * in the table is any layer, and a module stands
    for its weight and its bias."""
    found, taken = {}, set()
    for theirs, way in table.items():
        way = rename(way) if isinstance(way, str) else way
        for suffix in (".weight", ".bias", ""):
            pattern = re.escape(way.ours[0] + suffix).replace(r"\*", r"(\d+)")
            for layer in (match for name in tensors if (match := re.fullmatch(pattern, name))):
                number = layer[1] if layer.groups() else ""
                ours = [name.replace("*", number) + suffix for name in way.ours]
                name = theirs.replace("*", number) + (suffix if way.ours[0] + suffix != theirs else "")
                shape = tuple(way.there([torch.empty_like(tensors[o], device="meta") for o in ours]).shape)
                found[name] = ResolvedTensor(way, ours, shape)
                taken |= set(ours)
    assert taken == set(tensors), f"no place for {sorted(set(tensors) - taken)}"
    return found


def to_hf_tensors(table, tensors):
    """{their name: tensor}"""
    return {
        name: place.way.there([tensors[o] for o in place.ours]).contiguous()
        for name, place in resolve(table, tensors).items()
    }


def normalised_names(family, files):
    """{name as the family has it: name in the file}; older files lack the prefix, or say gamma and beta."""
    bare = family.prefix and not any(name.startswith(family.prefix) for name in files)
    names = {}
    for name in files:
        usual = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        names[family.prefix + usual if bare else usual] = name
    return names


def read_tensors(family, table, folder, model):
    """A tensor for each of the model's, in float32: nothing missing, nothing left over."""
    from safetensors import safe_open

    files = files_of(folder)
    names = normalised_names(family, files)

    def load(name):
        with safe_open(files[names[name]], "pt") as file:
            weight = file.get_tensor(names[name])
        if not weight.is_floating_point() or weight.element_size() < 2:
            raise HubError(f"{folder}: {name} is {weight.dtype}; only plain floating point weights are read")
        return weight.float()

    wanted = resolve(table, model)
    copies = {name: of for name, of in family.aliases.items() if name in names and name not in wanted}
    for name, instead in family.fallback.items():
        if name in wanted and name not in names and instead in names:
            names[name] = names[instead]
    zeros = {name for name, instead in family.fallback.items() if instead is None and name not in names}
    missing = [name for name in wanted if name not in names and name not in zeros]
    spare = "|".join(family.spare) or "(?!)"
    extra = [n for n in names if n not in wanted and n not in copies and not re.fullmatch(spare, n)]
    for what, odd in (
        ("has no tensor", missing),
        ("has a tensor that its config.json does not explain:", extra),
    ):
        if odd:
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            raise HubError(f"{folder} {what} {sorted(odd)[0]}{more} (a {family.model_type} model)")
    tensors = {}
    for name, place in wanted.items():
        weight = torch.zeros(place.shape) if name in zeros else load(name)
        if tuple(weight.shape) != place.shape:
            raise HubError(
                f"{folder}: {name} is {tuple(weight.shape)} and its config.json asks for {place.shape}"
            )
        parts = place.way.here(weight)
        tensors |= {o: part.contiguous() for o, part in zip(place.ours, parts, strict=True)}
    for name, of in copies.items():
        if not torch.equal(load(name), load(of)):
            raise HubError(
                f"{folder}: {name} and {of} differ, though its config.json shares one between them"
            )
    return tensors
