"""Greedy decoding beside transformers' generate, with the same weights and prompts.

They take turns, each in a fresh process, so that neither inherits the other's memory.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding [rounds]

`ours/hf` is the median of pairs.
"""

import sys
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
NEW = 200  # tokens


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


def measure(size, dtype, batch, side):
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
    ids = function(model, prompts, NEW)
    return ids, time.perf_counter() - start


COLUMNS = ("size", "dtype", "batch", "ours/s", "hf/s", "same_ids", "ours/hf")


def compare(*cell, rounds):
    """A row of the table."""
    found = take_turns(["ours", "hf"], rounds, partial(in_process, measure, *cell))
    ours, theirs = ([seconds for _, seconds in results] for results in found.values())
    rows = zip(*(results[0][0] for results in found.values()), strict=True)
    n_equal = sum(own == other for own, other in rows)
    speeds = [f"{cell[-1] * NEW / median(seconds):.1f}" for seconds in (ours, theirs)]
    return *cell, *speeds, n_equal, spread(ratios(theirs, ours))


def main(rounds=3):
    print("  ".join(f"{name:>9}" for name in COLUMNS))
    for cell in product(SIZES, ("fp32", "bf16"), (1, 16)):
        print("  ".join(f"{value!s:>9}" for value in compare(*cell, rounds=rounds)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
