"""Greedy decoding beside transformers' generate: the same GPT-2 weights and prompts, in turn in one process.

OMP_NUM_THREADS=2 python -m tests.benchmarks.decoding --rounds 5

`growth` is the time of the second half of the new tokens over that of the first: about 1 where the cost of a
token does not depend on the tokens before it.
"""

import argparse
import time
from statistics import median

import torch
import transformers as hf

from configs.compose import compose
from model.generate.decode import generate
from model.hub import best_match
from model.hub.spec import spec_from_config
from model.transformer import build_model
from tests.model.test_parity import IDS, copy_weights

# layers, heads, width, context length, vocabulary
SIZES = {"10m": (6, 6, 384, 256, 65), "124m": (12, 12, 768, 1024, 50257)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROMPT = 16


def build_both(size):
    """Our GPT-2 and that of transformers, with the same weights."""
    layers, heads, width, context, vocab_size = SIZES[size]
    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": context}
    # without an end token, every text has the full length
    hf_config = hf.GPT2Config(**sizes, vocab_size=vocab_size, bos_token_id=None, eos_token_id=None)
    hf_model = hf.GPT2LMHeadModel(hf_config).eval()
    overrides = [f"model.n_layers={layers}", f"model.n_heads={heads}", f"model.d_model={width}"]
    overrides += [f"model.context_length={context}", "model.dropout=0"]
    config = compose(["model=gpt2", *overrides]).model
    model = build_model(config, vocab_size).eval()
    match = best_match(spec_from_config(config, model), IDS, "gpt2")
    copy_weights(model, hf_model, match.family.tensors(match.spec, match.hf_config))
    return model, hf_model


def decode(model, prompts, new):
    """(ids, the time before the first token and after each)"""
    times, columns = [time.perf_counter()], []
    for ids in generate(model, prompts, max_new_tokens=new):
        columns.append(ids)
        times.append(time.perf_counter())
    return [list(row) for row in zip(*columns, strict=True)], times


def decode_hf(model, prompts, new):
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    text, start = torch.tensor(prompts), time.perf_counter()
    ids = model.generate(text, attention_mask=torch.ones_like(text), **options)
    return ids[:, text.shape[1] :].tolist(), [start, time.perf_counter()]


def compare(model, hf_model, batch, rounds, new):
    """(tokens per second of ours and of transformers, ratio, growth, whether the ids are equal): medians."""
    vocab_size = model.embedding.table.num_embeddings
    prompts = torch.randint(vocab_size, (batch, PROMPT), generator=torch.Generator().manual_seed(1)).tolist()
    candidates = [(decode, model), (decode_hf, hf_model)]
    for function, candidate in candidates:
        function(candidate, prompts, 4)  # the first call warms up
    seconds, growths, equal = [], [], True
    for i in range(rounds):
        order = candidates if i % 2 == 0 else candidates[::-1]
        results = {function: function(candidate, prompts, new) for function, candidate in order}
        (ids, times), (hf_ids, hf_times) = results[decode], results[decode_hf]
        middle = len(times) // 2
        growths.append((times[-1] - times[middle]) / (times[middle] - times[1]))
        seconds.append((times[-1] - times[0], hf_times[-1] - hf_times[0]))
        equal &= ids == hf_ids
    speeds = [batch * new / median(column) for column in zip(*seconds, strict=True)]
    return *speeds, median(b / a for a, b in seconds), median(growths), equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=200)
    args = parser.parse_args()
    columns = ["size", "", "batch", "ours/s", "hf/s", "ratio", "growth", "same ids"]
    print("  ".join(f"{name:>8}" for name in columns))
    for size in args.sizes:
        model, hf_model = build_both(size)
        for dtype in args.dtypes:
            model.to(DTYPES[dtype]), hf_model.to(DTYPES[dtype])
            for batch in args.batches:
                *numbers, equal = compare(model, hf_model, batch, args.rounds, args.new)
                row = [size, dtype, batch, *(f"{number:.2f}" for number in numbers), equal]
                print("  ".join(f"{value!s:>8}" for value in row), flush=True)


if __name__ == "__main__":
    main()
