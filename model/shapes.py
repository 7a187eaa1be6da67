"""Shapes: one small forward pass, watched. Every tensor whose name tells its axes is shown where it is made.

    python -m model.shapes model=llama attention=mla

A name that ends in capitals, such as q_BHTD, is a promise; `broken` lists the promises that were not kept.
"""

import argparse
import linecache
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

from configs.cli import run_command
from configs.compose import compose
from model import LEGEND, build_model
from model.attention import MultiHeadLatentAttention
from model.embedding import Embedding

HERE = Path(__file__).parent
SUFFIX = re.compile(rf"_([{''.join(LEGEND)}]+)$")
VOCABULARY = 97
# where a module says the size of an axis
AXIS_ATTRS = {
    "H": "n_heads",
    "G": "n_groups",
    "D": "head_dim",
    "E": "v_head_dim",
    "R": "rotary_dim",
    "P": "qk_nope_head_dim",
    "L": "kv_lora_rank",
    "F": "d_ff",
}


class TensorRecord(NamedTuple):
    """A tensor under a name that promises its axes, in one call of a function, on behalf of one module."""

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
    """The axes that a name tells, or nothing."""
    if name == "x":
        return "BTC"
    found = SUFFIX.search(name)
    return found and found[1]


class Tracer:
    """While it is entered, notes every tensor of such a name in the functions of this package."""

    def __init__(self, model):
        self.modules = {id(module): name for name, module in model.named_modules()}
        self.sightings, self.calls = [], 0

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *failure):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if path.parent != HERE:
            return None
        self.calls += 1
        call, module, line, seen = self.calls, self.module_of(frame), frame.f_lineno, {}

        def look(frame, event, argument):
            nonlocal line  # what is new now was made by the line before
            for name, value in list(frame.f_locals.items()):
                axes = axes_of(name)
                if axes and isinstance(value, torch.Tensor) and seen.get(name) is not value:
                    seen[name] = value
                    self.sightings.append(TensorRecord(module, call, path.name, line, name, axes, value))
            line = frame.f_lineno
            return look

        return look(frame, event, argument)

    def module_of(self, frame):
        """The innermost module at work: a function works for whoever called it."""
        while frame is not None:
            if id(frame.f_locals.get("self")) in self.modules:
                return self.modules[id(frame.f_locals["self"])]
            frame = frame.f_back
        return ""


def axis_sizes(model, **given):
    """Which sizes each axis may have in this model; B, T, S and N are given by the input."""
    sizes = defaultdict(set, {axis: set(values) for axis, values in given.items()})
    sizes["1"], sizes["V"] = {1}, {model.head.map.out_features}
    for module in model.modules():
        if isinstance(module, Embedding):
            sizes["C"].add(module.table.embedding_dim)
        for axis, owner in AXIS_ATTRS.items():
            if owner in vars(module):
                sizes[axis].add(vars(module)[owner])
        if isinstance(module, MultiHeadLatentAttention):  # absorbed, all heads look up the latents themselves
            remembered = module.kv_lora_rank + module.rotary_dim
            for axis, size in {"K": remembered, "G": 1, "D": remembered, "E": module.kv_lora_rank}.items():
                sizes[axis].add(size)
    sizes["W"] = {heads * width for heads in sizes["H"] for width in sizes["E"]}
    sizes["J"] = {T * heads // groups for T in sizes["T"] for heads in sizes["H"] for groups in sizes["G"]}
    return sizes


def violations(sightings, sizes):
    """Sentences about tensors that are not what their names promise. Within a call a letter means one
    size."""
    meaning, sentences = defaultdict(dict), []
    for s in sightings:
        kept = len(s.axes) == len(s.shape)
        for axis, size in zip(s.axes, s.shape, strict=False):
            if axis == "B" and size == 1:
                continue
            kept &= size in sizes[axis] and meaning[s.call].setdefault(axis, size) == size
        if not kept:
            sentences.append(f"{s.file}:{s.line} {s.name} is {s.shape}")
    return sentences


def trace_forward(model, inputs):
    """The sightings of one forward pass, each tensor once under each name, and of all layers the first."""
    with Tracer(model) as tracer:
        model(**inputs)
    shown, steps = set(), []
    for s in tracer.sightings:
        repeated = (s.name, id(s.tensor)) in shown or re.search(r"blocks\.[1-9]", s.module)
        handed_on = s.name == "x" and s.code.startswith("def ")
        if not repeated and not handed_on:
            steps.append(s)
        shown.add((s.name, id(s.tensor)))
    return steps


def example(kind):
    """Two texts of six tokens, and for an encoder-decoder two sources of nine."""
    texts = {"tokens": torch.arange(12).view(2, 6)}
    return texts | {"source": torch.arange(18).view(2, 9)} if kind == "encoder_decoder" else texts


def fmt(axes):
    return f"({', '.join(map(str, axes))})"


def show(config):
    model = build_model(config, VOCABULARY).double()  # in float64 the scores are made in the open
    steps, module = trace_forward(model, example(config.kind)), None
    for s in steps:
        if s.module != module:
            module = s.module
            print(f"\n{module or config.kind}")
        where = f"{s.file}:{s.line}"
        print(f"  {where:<20} {s.name:<14} {fmt(s.axes):<14} {fmt(s.shape):<15} {s.code}")
    print(f"\nOf {config.n_layers} layers the first is shown; the others do the same.\n")
    for axis, meaning in LEGEND.items():
        if any(axis in s.axes for s in steps):
            print(f"{axis}  {meaning}")


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m model.shapes",
        description="Every tensor of one forward pass whose name tells its axes, in order, with its shape.",
        epilog="The size is tiny unless you choose one: python -m model.shapes model=t5 size=small",
    )
    parser.add_argument(
        "words", nargs="*", metavar="key=value", help="what to change: a group or an option of configs/"
    )
    show(compose(["size=tiny", *parser.parse_args(words).words]).model)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
