"""Greedy decoding beside transformers' generate: the same GPT-2 weights and prompts, in turn in one process.

OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding --rounds 5

`grows` is the time of the second half of the new tokens over that of the first: about 1 where a token costs
the same whatever stands before it.
"""

import argparse
import time
from statistics import median

import torch
import transformers as hf

from configs.compose import compose
from model import build_model
from model.generate.decode import generate
from model.hub import best_match
from model.hub.spec import spec_from_config
from tests.model.test_parity import IDS, copied

SIZES = {
    "10m": {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256, "vocab_size": 65},
    "124m": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROMPT = 16


def both(size):
    """Theirs, and ours with its weights."""
    sizes = SIZES[size]
    torch.manual_seed(0)
    # no token ends a text: all are as long as was asked for
    theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).eval()
    words = [f"model.d_model={sizes['n_embd']}", f"model.n_layers={sizes['n_layer']}"]
    words += [
        f"model.n_heads={sizes['n_head']}",
        f"model.context_length={sizes['n_positions']}",
        "model.dropout=0",
    ]
    config = compose(["model=gpt2", *words]).model
    ours = build_model(config, sizes["vocab_size"]).eval()
    found = best_match(spec_from_config(config, ours), IDS, "gpt2")
    return copied(ours, theirs, found.family.tensors(found.spec, found.hf_config)), theirs


def by_ours(model, prompts, new):
    """(ids, seconds, how the time grows)"""
    times, columns = [time.perf_counter()], []
    for ids in generate(model, prompts, max_new_tokens=new):
        columns.append(ids)
        times.append(time.perf_counter())
    middle = len(times) // 2
    growth = (times[-1] - times[middle]) / (times[middle] - times[1])
    return [list(row) for row in zip(*columns, strict=True)], times[-1] - times[0], growth


def by_theirs(model, prompts, new):
    text = torch.tensor(prompts)
    start = time.perf_counter()
    ids = model.generate(
        text, attention_mask=torch.ones_like(text), max_new_tokens=new, do_sample=False, pad_token_id=0
    )
    return ids[:, text.shape[1] :].tolist(), time.perf_counter() - start


def compared(ours, theirs, batch, rounds, new):
    """(our tokens a second, theirs, ratio, growth, whether the ids are equal), medians over the rounds."""
    words = ours.embedding.table.num_embeddings
    prompts = torch.randint(words, (batch, PROMPT), generator=torch.Generator().manual_seed(1)).tolist()
    by_ours(ours, prompts, 4), by_theirs(theirs, prompts, 4)  # the first call warms up
    seconds, growths, equal = [], [], True
    for number in range(rounds):
        if number % 2:
            their_ids, their_time = by_theirs(theirs, prompts, new)
        our_ids, our_time, growth = by_ours(ours, prompts, new)
        if not number % 2:
            their_ids, their_time = by_theirs(theirs, prompts, new)
        seconds.append((our_time, their_time))
        growths.append(growth)
        equal &= our_ids == their_ids
    tokens = batch * new
    our_speed, their_speed = (tokens / median(column) for column in zip(*seconds, strict=True))
    return our_speed, their_speed, median(t / o for o, t in seconds), median(growths), equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=200)
    asked = parser.parse_args()
    columns = ["size", "", "batch", "ours/s", "theirs/s", "ratio", "grows", "same ids"]
    print("  ".join(f"{name:>8}" for name in columns))
    for size in asked.sizes:
        ours, theirs = both(size)
        for dtype in asked.dtypes:
            ours, theirs = ours.to(DTYPES[dtype]), theirs.to(DTYPES[dtype])
            for batch in asked.batches:
                mine, other, ratio, growth, equal = compared(ours, theirs, batch, asked.rounds, asked.new)
                row = [
                    size,
                    dtype,
                    batch,
                    f"{mine:.1f}",
                    f"{other:.1f}",
                    f"{ratio:.2f}",
                    f"{growth:.2f}",
                    equal,
                ]
                print("  ".join(f"{value!s:>8}" for value in row), flush=True)


if __name__ == "__main__":
    main()
