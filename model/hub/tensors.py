"""Tensors: converts those of transformers to those of a model and back."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.errors import HubError
from model.weights import Tensors


class TensorRule(NamedTuple):
    """How one tensor of transformers becomes one or several of a model, and back."""

    names: tuple[str, ...]  # in the model
    to_ours: Callable[[Tensor], list[Tensor]]
    to_hf: Callable[[list[Tensor]], Tensor]


# by the name in transformers, where * is any layer, and a module name means its weight and bias
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
            (name,), lambda weight: [to_ours(weight)], lambda parts: to_hf(parts[0])
        )
    return table


def skip_rows(n: int, text: str) -> Table:
    """A table for tensors whose first n rows in transformers are never used."""
    return columns(text, lambda rows: rows[n:], lambda rows: F.pad(rows, (0, 0, n, 0)))


def packed(names: Sequence[str], sizes: list[int] | None = None, n_groups: int = 1) -> TensorRule:
    """A rule for matrices of a block that are one matrix there. With several groups their rows
    alternate, as in GPT-NeoX: queries, key and value of a head, then the next. `sizes` are those of
    a group; None: all are equal."""

    def unpack(weight: Tensor) -> list[Tensor]:
        groups = weight.unflatten(0, (n_groups, -1))
        parts = groups.split(sizes or groups.shape[1] // len(names), 1)
        return [part.flatten(0, 1) for part in parts]

    def pack(parts: list[Tensor]) -> Tensor:
        groups = [part.unflatten(0, (n_groups, -1)) for part in parts]
        return torch.cat(groups, 1).flatten(0, 1)

    return TensorRule(tuple(f"stack.blocks.*.{name}" for name in names), unpack, pack)


def resolve(table: Table, tensors: Iterable[str]) -> dict[str, tuple[TensorRule, list[str]]]:
    """{name there: (rule, names in the model)}, for the tensors that a model has: with the layer
    number for *, and .weight or .bias at the end."""
    resolved = {}
    for hf_name, rule in table.items():
        pattern = re.escape(rule.names[0]).replace(r"\*", r"(?P<layer>\d+)")
        pattern += r"(?P<suffix>\.weight|\.bias|)"
        for tensor in tensors:
            match = re.fullmatch(pattern, tensor)
            if match:
                layer = match.groupdict().get("layer", "")
                suffix = match["suffix"]
                names = [name.replace("*", layer) + suffix for name in rule.names]
                resolved[hf_name.replace("*", layer) + suffix] = rule, names
    return resolved


def from_hf(table: Table, optional: str, theirs: Tensors, ours: Tensors) -> Tensors:
    """A tensor for each of the model's. One without a counterpart, there or here, is refused.
    `theirs` is emptied, so that each of its tensors can be freed once it is converted."""
    resolved = resolve(table, ours)
    # a tensor may have several names, as a tied head does
    taken = {theirs[name].data_ptr() for name in resolved if name in theirs}
    other = resolved.keys() - theirs.keys()
    for name, weight in theirs.items():
        if weight.data_ptr() not in taken and not re.search(optional, name):
            other.add(name)
    if other:
        raise HubError(f"config.json has no place for {min(other)} (tensors: {len(other)})")

    tensors = {}
    for name, (rule, parts) in resolved.items():
        weights = rule.to_ours(theirs.pop(name))
        for part, weight in zip(parts, weights, strict=True):
            if part not in tensors:
                # its own memory: T5's head may be its embedding there, but not here
                tensors[part] = weight.clone(memory_format=torch.contiguous_format)
    return tensors


def to_hf(table: Table, ours: Tensors) -> Tensors:
    tensors = {}
    for hf_name, (rule, parts) in resolve(table, ours).items():
        # its own memory: of tensors that share it, only one would be written
        tensors[hf_name] = rule.to_hf([ours[part] for part in parts]).clone()
    return tensors
