"""Tensors: those of a model, from the files of a folder and back, one for one."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.errors import HubError
from model.hub.files import load_tensors, naming
from model.weights import Tensors

CLASSIFIERS = "score|classifier|pre_classifier|classification_head|qa_outputs|discriminator_pred"


class TensorRule(NamedTuple):
    """How one tensor of transformers becomes one or several of a model, and back."""

    names: tuple[str, ...]  # in the model
    to_ours: Callable[[Tensor], list[Tensor]]
    to_hf: Callable[[list[Tensor]], Tensor]


# by the name in transformers, where * stands for any layer, and a module for its weight and bias
Table = dict[str, TensorRule]
QKV = ("attention.query", "attention.key", "attention.value")
Change = Callable[[Tensor], Tensor]


def same(weight: Tensor) -> Tensor:
    return weight


def columns(text: str, to_ours: Change = same, to_hf: Change = same) -> Table:
    """A table from two columns: names in transformers, and those of the tensors here."""
    words = text.split()
    table = {}
    for hf_name, name in zip(words[::2], words[1::2], strict=True):
        table[hf_name] = TensorRule(
            (name,),
            lambda weight: [to_ours(weight)],
            lambda parts: to_hf(parts[0]),
        )
    return table


def scaled(text: str, factor: float) -> Table:
    return columns(text, lambda weight: weight * factor, lambda weight: weight / factor)


def skip_rows(n: int, text: str) -> Table:
    """The first n rows in the file are never used."""
    return columns(text, lambda rows: rows[n:], lambda rows: F.pad(rows, (0, 0, n, 0)))


def row(i: int, text: str) -> Table:
    """Row i of a tensor, such as the matrix of an expert; in the table, the rows follow each other."""
    return columns(text, lambda row: row[None], lambda rows: rows[i])


def packed(names: Sequence[str], sizes: list[int] | None = None, n_groups: int = 1) -> TensorRule:
    """Matrices of a block that are one in the file, where their rows alternate if there are several
    groups, as in Falcon: queries, key and value of a group, then the next. Sizes are those of a
    group; without, all are alike."""

    def unpack(weight: Tensor) -> list[Tensor]:
        groups = weight.unflatten(0, (n_groups, -1))
        parts = groups.split(sizes, 1) if sizes else groups.chunk(len(names), 1)
        return [part.flatten(0, 1) for part in parts]

    def pack(parts: list[Tensor]) -> Tensor:
        groups = [part.unflatten(0, (n_groups, -1)) for part in parts]
        return torch.cat(groups, 1).flatten(0, 1)

    return TensorRule(tuple(f"stack.blocks.*.{name}" for name in names), unpack, pack)


def resolve(table: Table, tensors: Iterable[str]) -> dict[str, tuple[TensorRule, list[str]]]:
    """{name in the file: (rule, names in the model)}, for the tensors that a model has: with the
    number of a layer for *, and .weight or .bias behind it."""
    resolved = {}
    for hf_name, rule in table.items():
        pattern = re.escape(rule.names[0]).replace(r"\*", r"(\d+)") + r"(\.weight|\.bias|)"
        for tensor in tensors:
            if match := re.fullmatch(pattern, tensor):
                *layers, suffix = match.groups()
                layer = "".join(layers)
                names = [name.replace("*", layer) + suffix for name in rule.names]
                resolved[hf_name.replace("*", layer) + suffix] = rule, names
    return resolved


def join(pieces: Tensors, shape: torch.Size) -> Tensor:
    """Either the pieces are the same tensor, such as a tied head, or each has some of its rows. A new
    tensor, since the file may be deleted."""
    first, *others = pieces.values()
    if first.shape == shape:
        if not all(torch.equal(first, other) for other in others):
            raise HubError(f"{' and '.join(pieces)} differ, but config.json makes them one")
        others = []
    return torch.cat([first, *others])


def stored_tensors(family: Any, folder: Path) -> Tensors:
    """By their newer names, and with the prefix that they lack in a file of the model without
    head."""
    stored = {}
    for name, tensor in load_tensors(folder).items():
        stored[name.replace(".gamma", ".weight").replace(".beta", ".bias")] = tensor
    if any(name.startswith(family.prefix) for name in stored):
        return stored
    return {family.prefix + name: tensor for name, tensor in stored.items()}


def read_tensors(family: Any, table: Table, folder: Path, model_tensors: Tensors) -> Tensors:
    """One for each of the model's, in float32. Missing and unknown ones are refused by name."""
    stored = stored_tensors(family, folder)
    resolved = resolve(table, model_tensors)
    for copy, of in family.aliases.items():
        if copy in stored and copy not in resolved:
            resolved[copy] = resolved[of]
            stored.setdefault(of, stored[copy])  # there may be the copy alone
    missing = resolved.keys() - stored.keys() - family.fallback.keys()
    if missing:
        raise HubError(f"{min(missing)} is missing, {len(missing)} tensors in all")
    harmless = re.compile(f"{family.optional}|({CLASSIFIERS}).*")
    unknown = [name for name in stored.keys() - resolved.keys() if not harmless.fullmatch(name)]
    if unknown:
        what = f"{min(unknown)} is unknown to a {family.model_type} model"
        raise HubError(f"{what}, {len(unknown)} tensors in all")

    pieces: dict[str, Tensors] = {}
    for name, (rule, parts) in resolved.items():
        source = name if name in stored else family.fallback[name]
        if source:
            weight = stored[source]
        else:
            like = rule.to_hf([model_tensors[part] for part in parts])
            weight = torch.zeros_like(like, device="cpu")
        for part, rows in zip(parts, rule.to_ours(weight.float()), strict=True):
            pieces.setdefault(part, {})[name] = rows
    tensors: Tensors = {}
    for part in [*pieces]:
        with naming(part):
            tensors[part] = join(pieces.pop(part), model_tensors[part].shape)
    return tensors
