"""Print each tensor of a forward pass whose name encodes its axes, with its source line; or draw the masks.

The model is tiny unless a size is given: python -m model.shapes model=t5 size=small
"""

import linecache
import re
import sys
from collections import defaultdict
from contextlib import contextmanager
from itertools import count, groupby, zip_longest
from pathlib import Path
from typing import NamedTuple

import torch

from configs.cli import ArgumentParser, print, run_command
from configs.compose import check_flags, compose
from model import LEGEND
from model.transformer import build_model

HERE = Path(__file__).parent
SUFFIX = re.compile(rf"_([{''.join(LEGEND)}]+)$")
VOCAB_SIZE = 97


class TensorRecord(NamedTuple):
    """A tensor under a name that encodes its axes, in one call of a function, on behalf of one module."""

    module: str
    call: int
    file: str
    line: int
    name: str
    axes: str
    tensor: torch.Tensor

    @property
    def shape(self):
        return tuple(self.tensor.shape)

    @property
    def code(self):
        return linecache.getline(str(HERE / self.file), self.line).strip()


def axes_of(name):
    """The axes that a name encodes, or None."""
    match = SUFFIX.search(name)
    return "BTC" if name == "x" else match and match[1]


@contextmanager
def trace_tensors(model):
    """Yield the records of every tensor whose name ends in axes, in the functions of this folder."""
    modules = {id(module): name for name, module in model.named_modules()}
    records, calls = [], count()

    def trace(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if path.parent != HERE:
            return None
        owner = frame  # the innermost call of a method of a module
        while owner is not None and id(owner.f_locals.get("self")) not in modules:
            owner = owner.f_back
        module = modules[id(owner.f_locals["self"])] if owner else ""
        call, line, seen = next(calls), frame.f_lineno, {}

        def trace_line(frame, event, argument):
            nonlocal line  # a new tensor was made by the previous line
            for name, value in list(frame.f_locals.items()):
                axes = axes_of(name)
                if axes and isinstance(value, torch.Tensor) and seen.get(name) is not value:
                    seen[name] = value
                    records.append(TensorRecord(module, call, path.name, line, name, axes, value))
            line = frame.f_lineno
            return trace_line

        return trace_line(frame, event, argument)

    sys.settrace(trace)
    try:
        yield records
    finally:
        sys.settrace(None)


def trace_forward(model, inputs):
    """The records of one forward pass: each tensor once per name, and only those of the first layer."""
    with trace_tensors(model) as records:
        model(**inputs)
    seen, steps = set(), []
    for s in records:
        repeated = (s.name, id(s.tensor)) in seen or re.search(r"blocks\.[1-9]", s.module)
        is_argument = s.name == "x" and s.code.startswith("def ")
        if not repeated and not is_argument:
            steps.append(s)
        seen.add((s.name, id(s.tensor)))
    return steps


def example_inputs(kind, padding):
    """Two sequences; the second has padding, on the left in a decoder, as in batched generation."""
    inputs = {"tokens": torch.arange(12).view(2, 6)}
    if kind == "encoder_decoder":
        inputs["source"] = torch.arange(18).view(2, 9)
    if padding:
        name, length = ("source_visible", 9) if kind == "encoder_decoder" else ("visible", 6)
        visible = torch.arange(length) < length - torch.tensor([[0], [padding]])
        inputs[name] = visible.flip(-1) if kind == "decoder" else visible
    return inputs


def print_walk(steps, kind):
    sizes = defaultdict(set)
    for module, records in groupby(steps, lambda s: s.module):
        print(f"\n{module or kind}")
        for s in records:
            where, axes = f"{s.file}:{s.line}", f"({', '.join(s.axes)})"
            print(f"  {where:<20} {s.name:<14} {axes:<14} {s.shape!s:<15} {s.code}")
            for axis, size in zip(s.axes, s.shape, strict=False):
                sizes[axis].add(size)
    print("\nOnly the first layer of each stack is shown; the others are identical.\n")
    for axis in filter(sizes.get, LEGEND):
        print(f"{axis}  {', '.join(map(str, sorted(sizes[axis]))):<5}  {LEGEND[axis]}")
    equal = [f"{a} = {b}" for a, b in ("GH", "JT", "ED", "WC") if sizes[a] == sizes[b]]
    print(f"\nHere {', '.join(equal)}." if equal else "")


def draw_mask(record):
    """Lines of text for the second sequence: # where a query attends to a key."""
    weights_TS = record.tensor[1, 0]
    rows = [" ".join("#" if weight else "." for weight in row) for row in weights_TS]
    keys = " ".join(map(str, range(weights_TS.shape[1])))
    return [record.module, f"    key {keys}", *(f"query {i} {row}" for i, row in enumerate(rows))]


def main(args):
    check_flags(args, {"-h", "--help", "--mask", "--padding"})
    parser = ArgumentParser(prog="python -m model.shapes", description=__doc__)
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="config overrides, as for train.py"
    )
    parser.add_argument("--mask", action="store_true", help="draw which keys each query attends to")
    parser.add_argument(
        "--padding", type=int, choices=range(6), help="padding tokens of the second sequence"
    )
    options = parser.parse_intermixed_args(args)
    config = compose(["size=tiny", *options.overrides]).model
    model = build_model(
        config, VOCAB_SIZE
    ).double()  # in float64 there is no fused kernel to hide the scores
    steps = trace_forward(model, example_inputs(config.kind, options.padding))
    if not options.mask:
        return print_walk(steps, config.kind)
    masks = [draw_mask(s) for s in steps if s.name == "weights_BHTS"]
    for lines in zip_longest(*masks or [["no tensor is named weights_BHTS"]], fillvalue=""):
        print("  ".join(f"{line:<28}" for line in lines).rstrip())


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
