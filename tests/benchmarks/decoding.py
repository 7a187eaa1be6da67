"""Greedy decoding beside transformers' generate, with the same weights and prompts.

They take turns, each in a fresh process, so that neither inherits the other's memory.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding --rounds 5

`ours/hf` is the median of pairs.
"""

import argparse
import time
from functools import partial
from itertools import product
from statistics import median

import torch

from model.generate.decode import generate
from model.inference import prepare
from model.precision import DTYPES
from tests.benchmarks._turns import in_process, ratios, spread, take_turns
from tests.benchmarks.step import both_models

SIZES = {  # layers, heads, width, context length, vocabulary
    "10m": (6, 6, 384, 256, 65),
    "124m": (12, 12, 768, 1024, 50257),
}
PROMPT = 16


def decode(model, prompts, new):
    return [list(row) for row in zip(*generate(model, prompts, max_new_tokens=new), strict=True)]


def decode_hf(model, prompts, new):
    text = torch.tensor(prompts)
    ids = model.generate(
        text,
        attention_mask=torch.ones_like(text),
        do_sample=False,
        pad_token_id=0,
        max_new_tokens=new,
    )
    return ids[:, PROMPT:].tolist()


def measure(size, dtype, batch, new, side):
    """(ids, seconds) of one side."""
    ours, theirs = (model.eval() for model in both_models(*SIZES[size]))
    theirs.generation_config.eos_token_id = None  # every text has the full length
    if side == "ours":
        model = ours.to(DTYPES[dtype])
        prepare(model)
        function = decode
    else:
        model = theirs.to(DTYPES[dtype])
        function = decode_hf
    generator = torch.Generator().manual_seed(1)
    vocab_size = SIZES[size][-1]
    prompts = torch.randint(vocab_size, (batch, PROMPT), generator=generator).tolist()
    function(model, prompts, 4)  # the first call warms up
    start = time.perf_counter()
    ids = function(model, prompts, new)
    return ids, time.perf_counter() - start


def compare(size, dtype, batch, new, rounds):
    """A row of the table: {column: value}."""
    found = take_turns(
        ["ours", "hf"], rounds, partial(in_process, measure, size, dtype, batch, new)
    )
    ours, theirs = ([seconds for _, seconds in results] for results in found.values())
    rows = zip(*(results[0][0] for results in found.values()), strict=True)
    n_equal = sum(own == other for own, other in rows)
    return {
        "size": size,
        "dtype": dtype,
        "batch": batch,
        "ours/s": f"{batch * new / median(ours):.1f}",
        "hf/s": f"{batch * new / median(theirs):.1f}",
        "same_ids": f"{n_equal}/{batch}",
        "ours/hf": spread(ratios(theirs, ours)),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=200)
    args = parser.parse_args()
    for number, cell in enumerate(product(args.sizes, args.dtypes, args.batches)):
        row = compare(*cell, args.new, args.rounds)
        if number == 0:
            print("  ".join(f"{name:>9}" for name in row))
        print("  ".join(f"{value!s:>9}" for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
