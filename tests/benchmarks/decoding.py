"""Greedy decoding beside transformers' generate, with the same weights and prompts.

And beside the linear maps of our model alone. They run in turn, each in a fresh process, so that none
inherits another's memory.

OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding --rounds 5

`ours/hf` and `ours/lin` are medians of pairs, with the range of the first; `growth` is the time of the second
half of the tokens over that of the first, about 1 where a token's cost does not depend on those before it.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import product
from statistics import median

import torch

from configs.compose import compose
from model.generate.decode import generate
from model.hub import best_match
from model.hub.spec import spec_from_config
from model.precision import DTYPES
from model.transformer import build_model

# layers, heads, width, context length, vocabulary
SIZES = {"10m": (6, 6, 384, 256, 65), "124m": (12, 12, 768, 1024, 50257)}
PROMPT = 16


def build_both(size):
    """Our GPT-2 and that of transformers, with the same weights."""
    import transformers as hf

    from tests.model.test_parity import IDS, copy_weights

    *sizes, vocab_size = SIZES[size]
    names = ("n_layers", "n_heads", "d_model", "context_length")
    overrides = [f"model.{name}={n}" for name, n in zip(names, sizes, strict=True)]
    config = compose(["model=gpt2", "model.dropout=0", *overrides]).model
    model = build_model(config, vocab_size).eval()
    match = best_match(spec_from_config(config, model), IDS, "gpt2")
    # without an end token, every text has the full length
    options = match.hf_config | dict.fromkeys(("bos_token_id", "eos_token_id"))
    torch.manual_seed(0)
    hf_model = hf.GPT2LMHeadModel(hf.GPT2Config(**options | {"vocab_size": vocab_size})).eval()
    copy_weights(model, hf_model, match.family.tensors(match.spec, match.hf_config))
    return model, hf_model


def decode(model, prompts, new):
    """(ids, the time before the first token and after each)"""
    columns = []
    times = [time.perf_counter()]
    for ids in generate(model, prompts, max_new_tokens=new):
        columns.append(ids)
        times.append(time.perf_counter())
    return list(zip(*columns, strict=True)), times


def decode_hf(model, prompts, new):
    text = torch.tensor(prompts)
    start = time.perf_counter()
    options = {"attention_mask": torch.ones_like(text), "do_sample": False, "pad_token_id": 0}
    ids = model.generate(text, max_new_tokens=new, **options)
    return ids[:, PROMPT:].tolist(), [start, time.perf_counter()]


@torch.inference_mode()
def run_linear_maps(model, prompts, new):
    """Each linear map on its own input of the second token."""
    maps = [m for m in model.modules() if type(m).__name__ in ("Linear", "PackedLinear")]
    calls = []
    for module in maps:
        module.register_forward_pre_hook(lambda module, args: calls.append((module.forward, *args)))
    list(generate(model, prompts, max_new_tokens=2))
    second = calls[len(maps) : 2 * len(maps)]
    start = time.perf_counter()
    for _ in range(new):
        for forward, x in second:
            forward(x)
    return [], [start, time.perf_counter()]


SIDES = {"ours": decode, "hf": decode_hf, "linear": run_linear_maps}


def measure(side, size, dtype, batch, new):
    """Print the ids and times of one side."""
    from model.cpu import pack_linears

    model, hf_model = build_both(size)
    if side == "hf":
        model = hf_model
    model.to(DTYPES[dtype])
    if side != "hf":
        pack_linears(model)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(SIZES[size][-1], (batch, PROMPT), generator=generator).tolist()
    SIDES[side](model, prompts, 4)  # the first call warms up
    print(json.dumps(SIDES[side](model, prompts, new)))


def compare(size, dtype, batch, new, rounds):
    """A row of the table."""
    command = [sys.executable, "-m", "tests.benchmarks.decoding"]
    command += ["--sizes", size, "--dtypes", dtype, "--batches", str(batch), "--new", str(new)]
    texts = {}
    times = {side: [] for side in SIDES}
    for i in range(rounds):
        for side in SIDES if i % 2 == 0 else reversed(SIDES):
            output = subprocess.check_output([*command, "--measure", side])
            texts[side], stamps = json.loads(output)
            times[side].append(stamps)
    seconds = {side: [t[-1] - t[0] for t in column] for side, column in times.items()}

    def ratios(side):
        return [other / own for own, other in zip(seconds["ours"], seconds[side], strict=True)]

    half = new // 2
    growths = [(t[-1] - t[half]) / (t[half] - t[1]) for t in times["ours"]]
    speeds = [f"{batch * new / median(seconds[side]):.1f}" for side in SIDES]
    medians = [f"{median(column):.2f}" for column in (ratios("hf"), ratios("linear"), growths)]
    spread = f"{min(ratios('hf')):.2f}-{max(ratios('hf')):.2f}"
    n_equal = sum(map(list.__eq__, texts["ours"], texts["hf"]))
    return [size, dtype, batch, *speeds, *medians, spread, f"{n_equal}/{batch}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cells = product(args.sizes, args.dtypes, args.batches)
    if args.measure:
        measure(args.measure, *next(cells), args.new)
        return
    columns = "size dtype batch ours/s hf/s linear/s ours/hf ours/lin growth range same_ids"
    print("  ".join(f"{name:>9}" for name in columns.split()))
    for cell in cells:
        values = compare(*cell, args.new, args.rounds)
        print("  ".join(f"{value!s:>9}" for value in values), flush=True)


if __name__ == "__main__":
    main()
