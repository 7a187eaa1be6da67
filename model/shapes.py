"""Print each tensor of a forward pass whose name encodes its axes, with its source line; or draw
the masks.

The model is tiny unless a size is given: python -m model.shapes model=t5 size=small
"""

import linecache
import re
import sys
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
from configs.parts import LOADED
from model import LEGEND
from model.transformer import Stack, build_model

HERE = Path(__file__).parent
AXES = re.compile(rf"^x$|_([{''.join(LEGEND)}]+)$")


class TensorRecord(NamedTuple):
    """A tensor under a name that encodes its axes, in one call of a function, for one module."""

    module: str
    call: FrameType
    place: str  # such as attend.py:95
    code: str
    name: str
    axes: str
    tensor: Tensor


@contextmanager
def trace_tensors(model: nn.Module) -> Iterator[list[TensorRecord]]:
    """Yield the records of every tensor whose name encodes its axes, in the files beside this: each
    once per name."""
    names = {id(module): name for name, module in model.named_modules()}
    records: list[TensorRecord] = []
    seen = set()
    lines: dict[FrameType, int] = {}  # of each call, the line that it is at

    def module_of(call: Any) -> str:
        """The module whose method this is, or has called this."""
        while call and id(call.f_locals.get("self")) not in names:
            call = call.f_back
        return names[id(call.f_locals["self"])] if call else ""

    def trace(call: FrameType, event: str, argument: Any) -> Any:
        """Python calls it at the beginning and end of each call, and before each line."""
        path = Path(call.f_code.co_filename)
        if path.parent != HERE and path not in LOADED:
            return None
        line = lines.get(call, call.f_lineno)  # has just run, so it made all that is new
        lines[call] = call.f_lineno
        place = f"{path.name}:{line}"
        code = linecache.getline(str(path), line).strip()

        for name, value in list(call.f_locals.items()):
            match = AXES.search(name)
            if match and isinstance(value, Tensor) and (name, id(value)) not in seen:
                seen.add((name, id(value)))
                axes = match[1] or "BTC"
                records.append(TensorRecord(module_of(call), call, place, code, name, axes, value))
        return trace

    sys.settrace(trace)
    try:
        yield records
    finally:
        sys.settrace(None)


def trace_forward(model: nn.Module, inputs: dict[str, Tensor]) -> list[TensorRecord]:
    """The tensors that the lines of one forward pass make, in the first layer of each kind."""
    with trace_tensors(model) as records:
        model(**inputs)

    hidden: list[str] = []  # names of layers that are as an earlier one
    for name, stack in model.named_children():
        layers = stack.layers if isinstance(stack, Stack) else []
        hidden += [f"{name}.blocks.{i}." for i, one in enumerate(layers) if one in layers[:i]]

    return [
        record
        for record in records
        if not record.code.startswith("def ")  # as an argument
        and not f"{record.module}.".startswith(tuple(hidden))
    ]


def example_inputs(kind: str, padding: int) -> dict[str, Tensor]:
    """Two sequences; the second has padding, on the left in a decoder, as in batched generation."""
    tokens = torch.arange(12).view(2, 6)
    if kind == "encoder_decoder":
        source = torch.arange(18).view(2, 9)
        return {"source": source, "tokens": tokens, "source_visible": source < 18 - padding}
    visible = tokens < 12 - padding
    return {"tokens": tokens, "visible": visible.flip(-1) if kind == "decoder" else visible}


def print_walk(steps: list[TensorRecord], kind: str) -> None:
    for module, records in groupby(steps, lambda record: record.module):
        print(f"\n{module or kind}")
        for record in records:
            axes = f"({', '.join(record.axes)})"
            shape = tuple(record.tensor.shape)
            print(f"  {record.place:<20} {record.name:<14} {axes:<14} {shape!s:<15} {record.code}")

    print("\nOf the layers of a stack that are alike, only the first is shown.\n")
    used = {axis for record in steps for axis in record.axes}
    for axis, meaning in LEGEND.items():
        if axis in used:
            print(f"{axis}  {meaning}")


def draw_mask(record: TensorRecord) -> list[str]:
    """Lines of text for the second sequence: # where a query attends to a key."""
    weights_TS = record.tensor[1, 0]
    keys = " ".join(map(str, range(weights_TS.shape[1])))
    lines = [record.module, f"    key {keys}"]
    for query, row in enumerate(weights_TS):
        marks = " ".join("#" if weight else "." for weight in row)
        lines.append(f"query {query} {marks}")
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
    model = build_model(config, vocab_size=97).double()

    steps = trace_forward(model, example_inputs(config.kind, options.padding))
    if not options.mask:
        return print_walk(steps, config.kind)

    masks = [draw_mask(record) for record in steps if record.name == "weights_BHTS"]
    for lines in zip_longest(*masks or [["no tensor is named weights_BHTS"]], fillvalue=""):
        print("  ".join(f"{line:<28}" for line in lines).rstrip())


if __name__ == "__main__":
    sys.exit(run_command(main))
