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

from model import LEGEND, build_model
from model.attention import Latent
from model.embedding import Embedding
from training.config import compose

ROOT = Path(__file__).parent.parent
SUFFIX = re.compile(rf"_([{''.join(LEGEND)}]+)$")
VOCABULARY = 97
# where a module says the size of an axis
OWNERS = {
    "H": "n_heads",
    "G": "n_groups",
    "D": "key_width",
    "E": "value_width",
    "R": "rotary_width",
    "P": "plain_width",
    "L": "latent_width",
    "F": "ffn_width",
}


class Sighting(NamedTuple):
    """A tensor under a name that promises its axes; `call` numbers the function calls."""

    call: int
    path: str
    line: int
    name: str
    axes: str
    tensor: torch.Tensor
    is_argument: bool

    @property
    def shape(self):
        return tuple(self.tensor.shape)


def promised(name):
    """The axes that a name tells, or nothing."""
    if name == "x":
        return "BTC"
    found = SUFFIX.search(name)
    return found and found[1]


class Tracer:
    """While it is entered, notes every tensor of such a name in the functions of this package."""

    def __init__(self):
        self.sightings, self.calls = [], 0

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *failure):
        sys.settrace(None)

    def trace(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if path.parent != Path(__file__).parent:
            return None
        self.calls += 1
        call, line, seen = self.calls, frame.f_lineno, {}

        def look(frame, event, argument):
            nonlocal line  # what is new now was made by the line before
            for name, value in list(frame.f_locals.items()):
                axes = promised(name)
                if axes and isinstance(value, torch.Tensor) and seen.get(name) is not value:
                    seen[name] = value
                    where = str(path.relative_to(ROOT)), line
                    self.sightings.append(Sighting(call, *where, name, axes, value, event == "call"))
            line = frame.f_lineno
            return look

        return look(frame, event, argument)


def axis_sizes(model, **given):
    """Which sizes each axis may have in this model; T and S are given by the input."""
    sizes = defaultdict(set, {axis: set(values) for axis, values in given.items()})
    sizes["1"], sizes["V"] = {1}, {model.head.map.out_features}
    for module in model.modules():
        if isinstance(module, Embedding):
            sizes["C"].add(module.table.embedding_dim)
        for axis, owner in OWNERS.items():
            if owner in vars(module):
                sizes[axis].add(vars(module)[owner])
        if isinstance(module, Latent):  # absorbed, all heads look up one table of latents
            remembered = module.latent_width + module.rotary_width
            for axis, size in {"K": remembered, "G": 1, "D": remembered, "E": module.latent_width}.items():
                sizes[axis].add(size)
    return sizes


def broken(sightings, sizes):
    """Sentences about tensors that are not what their names promise. Within one call a letter means one
    size."""
    meaning, sentences = defaultdict(dict), []
    for s in sightings:
        kept = len(s.axes) == len(s.shape)
        for axis, size in zip(s.axes, s.shape, strict=False):
            if axis == "B" and size == 1:
                continue
            known = not sizes[axis] or size in sizes[axis]
            kept &= known and meaning[s.call].setdefault(axis, size) == size
        if not kept:
            sentences.append(f"{s.path}:{s.line} {s.name} is {s.shape}")
    return sentences


def walk(model, inputs):
    """The sightings of one forward pass, each place once: layers repeat themselves."""
    with Tracer() as tracer:
        model(**inputs)
    shown, steps = set(), []
    for s in tracer.sightings:
        place, thing = (s.path, s.line, s.name, s.shape), (s.name, id(s.tensor))
        if not shown & {place, thing} and not (s.is_argument and s.name == "x"):
            steps.append(s)
        shown |= {place, thing}
    return steps


def example(kind):
    """Two texts of six tokens, and for an encoder-decoder two sources of nine."""
    texts = {"tokens": torch.arange(12).view(2, 6)}
    return texts | {"source": torch.arange(18).view(2, 9)} if kind == "encoder_decoder" else texts


def spell(axes):
    return f"({', '.join(map(str, axes))})"


def show(config):
    model = build_model(config, VOCABULARY).double()  # in float64 the scores are made in the open
    steps = walk(model, example(config.kind))
    for s in steps:
        where, code = f"{s.path}:{s.line}", linecache.getline(str(ROOT / s.path), s.line).strip()
        print(f"{where:<27} {s.name:<14} {spell(s.axes):<14} {spell(s.shape):<16} {code}")
    print("\nEach line once; every layer repeats its own.\n")
    for axis, meaning in LEGEND.items():
        if any(axis in s.axes for s in steps):
            print(f"{axis}  {meaning}")


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m model.shapes",
        description="Every named tensor of one small forward pass, in order, with its axes and its shape.",
        epilog="example: python -m model.shapes model=t5 attention=mla position=rope size=small",
    )
    parser.add_argument("words", nargs="*", metavar="group=kind", help="what to change, as for train.py")
    try:
        show(compose(["size=tiny", *parser.parse_args(words).words]).model)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
