"""Print each tensor of a forward pass whose name encodes its axes, with its source line; or draw
the masks.

The model is tiny unless a size is given: python -m model.shapes model=t5 size=small
"""

import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from configs.cli import ArgumentParser, print, run_command
from configs.compose import compose
from model import LEGEND
from model.transformer import build_model

HERE = Path(__file__).parent
SUFFIX = re.compile(rf"_([{''.join(LEGEND)}]+)$")
VOCAB_SIZE = 97


class TensorRecord(NamedTuple):
    """A tensor under a name that encodes its axes, in one call of a function, for one module."""

    module: str
    call: object
    place: str  # such as attend.py:95
    code: str
    name: str
    axes: str
    tensor: Tensor


def axes_of(name: str) -> str | None:
    """The axes that a name encodes, or None."""
    match = SUFFIX.search(name)
    return "BTC" if name == "x" else match and match[1]


@contextmanager
def trace_tensors(model: nn.Module) -> Iterator[list[TensorRecord]]:
    """Yield the records of every tensor whose name encodes its axes, in the files beside this."""
    modules = {id(module): name for name, module in model.named_modules()}
    records: list[TensorRecord] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        if path.parent != HERE:
            return None
        owner: FrameType | None = frame  # the innermost call of a method of a module
        while owner is not None and id(owner.f_locals.get("self")) not in modules:
            owner = owner.f_back
        module = modules[id(owner.f_locals["self"])] if owner else ""
        call = object()
        line = frame.f_lineno
        seen: dict[str, Tensor] = {}

        def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal line  # a new tensor was made by the previous line
            for name, value in list(frame.f_locals.items()):
                axes = axes_of(name)
                if axes and isinstance(value, Tensor) and seen.get(name) is not value:
                    seen[name] = value
                    place = f"{path.name}:{line}"
                    code = linecache.getline(str(path), line).strip()
                    records.append(TensorRecord(module, call, place, code, name, axes, value))
            line = frame.f_lineno
            return trace_line

        return trace_line(frame, event, argument)

    sys.settrace(trace)
    try:
        yield records
    finally:
        sys.settrace(None)


def trace_forward(model: nn.Module, inputs: dict[str, Tensor]) -> list[TensorRecord]:
    """The records of one forward pass: each tensor once per name, and only in the first layer."""
    with trace_tensors(model) as records:
        model(**inputs)

    seen = set()
    steps = []
    for record in records:
        key = (record.name, id(record.tensor))
        is_argument = record.name == "x" and record.code.startswith("def ")
        if key not in seen and not is_argument and not re.search(r"blocks\.[1-9]", record.module):
            steps.append(record)
        seen.add(key)
    return steps


def example_inputs(kind: str, padding: int) -> dict[str, Tensor]:
    """Two sequences; the second has padding, on the left in a decoder, as in batched generation."""
    inputs = {"tokens": torch.arange(12).view(2, 6)}
    name = "visible"
    length = 6
    if kind == "encoder_decoder":
        inputs["source"] = torch.arange(18).view(2, 9)
        name = "source_visible"
        length = 9

    if padding:
        visible = torch.arange(length) < torch.tensor([[length], [length - padding]])
        inputs[name] = visible.flip(-1) if kind == "decoder" else visible
    return inputs


def print_walk(steps: list[TensorRecord], kind: str) -> None:
    sizes: dict[str, set[int]] = defaultdict(set)
    for module, records in groupby(steps, lambda record: record.module):
        print(f"\n{module or kind}")
        for record in records:
            axes = f"({', '.join(record.axes)})"
            shape = tuple(record.tensor.shape)
            print(f"  {record.place:<20} {record.name:<14} {axes:<14} {shape!s:<15} {record.code}")
            for axis, size in zip(record.axes, shape, strict=True):
                sizes[axis].add(size)

    print("\nOnly the first layer of each stack is shown; the others are identical.\n")
    for axis in filter(sizes.get, LEGEND):
        print(f"{axis}  {', '.join(map(str, sorted(sizes[axis]))):<5}  {LEGEND[axis]}")

    equal = [f"{a} = {b}" for a, b in ("GH", "JT", "ED", "WC") if sizes[a] == sizes[b]]
    print(f"\nHere {', '.join(equal)}." if equal else "")


def draw_mask(record: TensorRecord) -> list[str]:
    """Lines of text for the second sequence: # where a query attends to a key."""
    weights_TS = record.tensor[1, 0]
    keys = " ".join(map(str, range(weights_TS.shape[1])))
    lines = [record.module, f"    key {keys}"]
    for query, row in enumerate(weights_TS):
        lines.append(f"query {query} {' '.join('#' if weight else '.' for weight in row)}")
    return lines


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m model.shapes", description=__doc__)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="key=value", help="config overrides, as for train.py")
    add("--mask", action="store_true", help="draw which keys each query attends to")
    padded = "padding tokens of the second sequence"
    add("--padding", type=int, choices=range(6), default=0, help=padded)
    options = parser.parse_intermixed_args(args)

    config = compose(["size=tiny", *options.overrides]).model
    # in float64 there is no fused kernel to hide the scores
    model = build_model(config, VOCAB_SIZE).double()

    steps = trace_forward(model, example_inputs(config.kind, options.padding))
    if not options.mask:
        return print_walk(steps, config.kind)

    masks = [draw_mask(record) for record in steps if record.name == "weights_BHTS"]
    for lines in zip_longest(*masks or [["no tensor is named weights_BHTS"]], fillvalue=""):
        print("  ".join(f"{line:<28}" for line in lines).rstrip())


if __name__ == "__main__":
    sys.exit(run_command(main))
