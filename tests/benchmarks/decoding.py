"""Greedy decoding beside transformers' generate, with the same weights and prompts.

They run in turn, each in a fresh process, so that neither inherits the other's memory.

    OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding --rounds 5

`ours/hf` is the median of pairs.
"""

import argparse
import multiprocessing
import time
from itertools import product
from statistics import median

import torch

from configs.compose import compose
from model.generate.decode import generate
from model.hub.convert import first_match
from model.hub.spec import spec_from_config
from model.hub.tensors import resolve
from model.precision import DTYPES
from model.transformer import build_model
from tests.benchmarks.step import model_sizes

# layers, heads, width, context length, vocabulary
SIZES = {"10m": (6, 6, 384, 256, 65), "124m": (12, 12, 768, 1024, 50257)}
PROMPT = 16
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def build_both(size):
    """Our GPT-2 and that of transformers, with the same weights."""
    import transformers as hf

    *sizes, vocab_size = SIZES[size]
    config = compose(["model=gpt2", "model.dropout=0", *model_sizes(*sizes)]).model
    model = build_model(config, vocab_size).eval()
    match = first_match(spec_from_config(config, model), IDS, "gpt2")
    # without an end token, every text has the full length
    options = match.hf_config | dict.fromkeys(("bos_token_id", "eos_token_id"))
    torch.manual_seed(0)
    hf_model = hf.GPT2LMHeadModel(hf.GPT2Config(**options | {"vocab_size": vocab_size})).eval()
    copy_weights(model, hf_model, match.family.tensors(match.spec, match.hf_config))
    return model, hf_model


def copy_weights(model, hf_model, rules):
    weights = hf_model.state_dict()
    for hf_name, (rule, names) in resolve(rules, dict(model.named_parameters())).items():
        for name, tensor in zip(names, rule.to_ours(weights[hf_name]), strict=True):
            model.get_parameter(name).data = tensor.clone()


def decode(model, prompts, new):
    """(ids, the time before the first token and after each)"""
    columns = []
    times = [time.perf_counter()]
    for ids in generate(model, prompts, max_new_tokens=new):
        columns.append(ids)
        times.append(time.perf_counter())
    return [list(row) for row in zip(*columns, strict=True)], times


def decode_hf(model, prompts, new):
    text = torch.tensor(prompts)
    start = time.perf_counter()
    ids = model.generate(
        text,
        attention_mask=torch.ones_like(text),
        do_sample=False,
        pad_token_id=0,
        max_new_tokens=new,
    )
    return ids[:, PROMPT:].tolist(), [start, time.perf_counter()]


SIDES = {"ours": decode, "hf": decode_hf}


def measure(side, size, dtype, batch, new):
    """The ids and times of one side."""
    from model.inference import prepare

    model, hf_model = build_both(size)
    if side == "hf":
        model = hf_model.to(DTYPES[dtype])
    else:
        prepare(model.to(DTYPES[dtype]))
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(SIZES[size][-1], (batch, PROMPT), generator=generator).tolist()
    SIDES[side](model, prompts, 4)  # the first call warms up
    return SIDES[side](model, prompts, new)


def compare(size, dtype, batch, new, rounds):
    """A row of the table: {column: value}."""
    texts = {}
    times = {side: [] for side in SIDES}
    for i in range(rounds):
        for side in SIDES if i % 2 == 0 else reversed(SIDES):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                texts[side], stamps = pool.apply(measure, (side, size, dtype, batch, new))
            times[side].append(stamps)
    ours, theirs = ([t[-1] - t[0] for t in times[side]] for side in SIDES)
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    n_equal = sum(map(list.__eq__, texts["ours"], texts["hf"]))
    return {
        "size": size,
        "dtype": dtype,
        "batch": batch,
        "ours/s": f"{batch * new / median(ours):.1f}",
        "hf/s": f"{batch * new / median(theirs):.1f}",
        "ours/hf": f"{median(ratios):.2f}",
        "range": f"{min(ratios):.2f}-{max(ratios):.2f}",
        "same_ids": f"{n_equal}/{batch}",
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
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
