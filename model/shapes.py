"""Print each tensor of a forward pass whose name encodes its axes, or draw the masks.

The model is tiny unless a size is given: python -m model.shapes model=t5 size=small
"""

import linecache
import re
import sys
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from configs.cli import ArgumentParser, print0, run_command
from configs.compose import compose, key_of
from configs.parts import LOADED
from configs.schema import Config
from model import LEGEND
from model.transformer import Stack, Transformer, build_model

HERE = Path(__file__).parent
VOCABULARY = 97
LONGEST = 300  # in longer sequences, a fused kernel hides the scores
SMALL = 300  # largest number of elements whose values are shown
LAYER = re.compile(r"\w+\.blocks\.\d+")
AXES = re.compile(rf"^x$|_([{''.join(LEGEND)}]+)$")


class TensorRecord(NamedTuple):
    """A tensor whose name encodes its axes, in one call of a function, for one module."""

    module: str
    call: FrameType
    place: str  # such as attend.py:95
    code: str
    name: str
    axes: str
    tensor: Tensor


@contextmanager
def trace_tensors(model: nn.Module) -> Iterator[list[TensorRecord]]:
    """Yield the records of every tensor whose name encodes its axes, in the files beside this one,
    each once per name."""
    modules = {id(module): name for name, module in model.named_modules()}
    records = []
    seen = set()
    lines: dict[FrameType, int] = {}  # the current line of each call

    def module_of(call: FrameType | None) -> str:
        """The module whose method this call is, or comes from."""
        while call is not None and id(call.f_locals.get("self")) not in modules:
            call = call.f_back
        return modules[id(call.f_locals["self"])] if call else ""

    def trace(call: FrameType, event: str, argument: Any) -> Any:
        """Python calls this at the beginning and end of each call, and before each line."""
        path = Path(call.f_code.co_filename)
        if path.parent != HERE and path not in LOADED:
            return None
        line = lines.get(call, call.f_lineno)  # has just run, so it made all that is new
        place = f"{path.name}:{line}"
        code = linecache.getline(str(path), line).strip()
        lines[call] = call.f_lineno

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


def layer_counts(model: nn.Module) -> Counter[str]:
    """How many layers are identical to each; a repeated layer has no entry of its own."""
    counts: Counter[str] = Counter()
    for name, stack in model.named_children():
        if isinstance(stack, Stack):  # blocks of one config may differ: the first may lack a norm
            layers = list(zip(stack.configs, map(str, stack.blocks), strict=True))
            counts.update(f"{name}.blocks.{layers.index(layer)}" for layer in layers)
    return counts


def trace_forward(model: nn.Module, inputs: dict[str, Tensor]) -> list[TensorRecord]:
    """The tensors that one forward pass makes, in the first layer of each kind."""
    with trace_tensors(model) as records:
        model(**inputs)

    shown = layer_counts(model).keys()
    return [
        record
        for record in records
        if shown >= {*LAYER.findall(record.module)} and not record.code.startswith("def ")
    ]


def example_inputs(kind: str, lengths: list[int], padding: int) -> dict[str, Tensor]:
    """Two sequences; the second is padded, in a decoder on the left, as in batched generation.
    Several lengths are those of documents in one row."""
    length = sum(lengths)

    if not 0 <= padding < min(lengths) or length > LONGEST:
        raise ValueError(f"--length is from 1 to {LONGEST}, and --padding from 0 to less than it")
    tokens = torch.arange(2 * length).view(2, -1)
    inputs = {"tokens": tokens % VOCABULARY}

    if len(lengths) > 1:
        if kind != "decoder" or padding:
            raise ValueError("--documents is for a decoder without --padding")

        documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        inputs["documents"] = documents.repeat(2, 1)

    read = tokens  # what the attention with padded keys reads
    if kind == "encoder_decoder":
        read = torch.arange(length * 3 // 2 * 2).view(2, -1)
        inputs["source"] = read % VOCABULARY

    if padding:
        visible = read < read.numel() - padding
        name = "source_visible" if kind == "encoder_decoder" else "visible"
        inputs[name] = visible.flip(-1) if kind == "decoder" else visible
    return inputs


def weights_of(model: nn.Module, modules: set[str]) -> dict[str, list[str]]:
    """A line for each parameter, under the innermost of these modules that contains it."""
    shown = layer_counts(model).keys()
    starts = {module and f"{module}." for module in modules}
    lines = defaultdict(list)
    for name, weight in model.named_parameters(remove_duplicate=False):
        if shown >= {*LAYER.findall(name)}:
            start = max(filter(name.startswith, starts), key=len)
            lines[start[:-1]].append(f"  {name[len(start) :]:<29} {tuple(weight.shape)}")
    return lines


def print_walk(model: Transformer, steps: list[TensorRecord], options: Namespace) -> None:
    weights = weights_of(model, {record.module for record in steps})
    counts = layer_counts(model)
    torch.set_printoptions(precision=3, linewidth=60)
    for module, records in groupby(steps, lambda record: record.module):
        print0(f"\n{module or model.kind}" + f"  x {counts[module]} layers" * (counts[module] > 1))
        for line in weights.pop(module, []):
            print0(line)

        for record in records:
            axes = f"({', '.join(record.axes)})"
            print0(f"  {record.name:<14} {axes:<14} {tuple(record.tensor.shape)}")

            if options.code:
                print0(f"    {record.place}  {record.code}"[:80])
            if options.values and record.tensor.numel() <= SMALL:
                print0(record.tensor.detach().float())

    print0("\nIdentical layers are shown once. A weight W of shape (out, in) maps x to x W'.\n")
    used = {axis for record in steps for axis in record.axes}

    for axis, meaning in LEGEND.items():
        if axis in used:
            print0(f"{axis}  {meaning}")


def draw_mask(record: TensorRecord) -> list[str]:
    """Lines of text for the second sequence: # where a query attends to a key."""
    weights_TS = record.tensor[1, 0]
    n_keys = weights_TS.shape[1]
    gap = " " if n_keys < 36 else ""  # in 80 columns
    lines = [record.module, "    key " + gap.join(str(key % 10) for key in range(n_keys))]

    for query, row in enumerate(weights_TS):
        lines.append(f"query {query % 10} " + gap.join("#" if weight else "." for weight in row))
    return lines


def print_masks(records: list[TensorRecord]) -> None:
    masks = [draw_mask(record) for record in records] or [["no tensor is named weights_BHTS"]]
    width = max(len(line) for lines in masks for line in lines) + 1
    n_columns = max(1, 81 // width)

    while masks:
        for lines in zip_longest(*masks[:n_columns], fillvalue=""):
            print0("".join(f"{line:<{width}}" for line in lines).rstrip())
        masks = masks[n_columns:]


def main(args: list[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m model.shapes", description=__doc__)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="key=value", help="settings of the model, as for train.py")
    tokens = "tokens of a sequence, or of the documents in it, such as 2,4"
    add("--length", "--documents", metavar="N", default="6", help=tokens)
    add("--padding", type=int, metavar="N", default=0, help="padding tokens in the second sequence")

    add = parser.add_mutually_exclusive_group().add_argument
    add("--mask", action="store_true", help="draw which keys each query attends to")
    add("--code", action="store_true", help="print the line that makes each tensor")
    add("--values", action="store_true", help=f"print tensors of at most {SMALL} numbers")
    options = parser.parse_intermixed_args(args)

    ignored = Config.__dataclass_fields__.keys() - {"model", "parts"}
    for override in options.overrides:
        if re.split("[.@]", key_of(override))[0] in ignored:
            hint = "; --documents 2,4 shows documents in one row" * ("document" in override)
            raise ValueError(f"{override} does not change the shapes of a model{hint}")

    config = compose(["size=tiny", *options.overrides]).model
    if config.layers:  # show a whole pattern
        config = replace(config, n_layers=max(config.n_layers, len(config.layers)))

    # in float64 there is no fused kernel to hide the scores
    model = build_model(config, vocab_size=VOCABULARY).double().eval()

    lengths = list(map(int, options.length.split(",")))
    steps = trace_forward(model, example_inputs(model.kind, lengths, options.padding))

    if options.mask:
        print_masks([record for record in steps if record.name == "weights_BHTS"])
    else:
        print_walk(model, steps, options)


if __name__ == "__main__":
    sys.exit(run_command(main))
