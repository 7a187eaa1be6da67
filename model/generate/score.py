"""Score: how surprising each token of a text is to a model."""

import json
import math
import sys
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from model.generate.decode import NOT_FINITE, left_pad

BIT = math.log(2)  # in nats
STYLES = ("", "yellow", "dark_orange", "red")  # of a terminal, each for 4 bits more


@torch.inference_mode()
def score(model: Any, ids: list[int], n_likely: int = 0) -> tuple[list[float], list[dict]]:
    """The log-probability of each id but the first, which nothing precedes; and the likeliest ids in
    its place, with theirs."""
    tokens, _ = left_pad([ids[:-1]], model)
    logprobs_TV = model.head(model.hidden(tokens)[0]).float().log_softmax(-1)
    logprobs_T1 = logprobs_TV.gather(1, tokens.new_tensor(ids[1:])[:, None])

    if not logprobs_T1.isfinite().all():
        raise FloatingPointError(NOT_FINITE)

    top = logprobs_TV.topk(n_likely)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return logprobs_T1[:, 0].tolist(), [dict(zip(*pair, strict=True)) for pair in pairs]


def texts_of(tokenizer: Any, ids: list[int]) -> list[str]:
    """The text that each id adds."""
    decode = tokenizer.incremental_decoder()

    texts = [decode([i]) for i in ids]
    texts[-1] += decode([], final=True)
    return texts


def print_scores(sampler: Any, rows: list) -> None:
    """Print the surprisal of each token but the first, and the sum."""
    if not sampler.echoes:
        raise ValueError("--score needs a decoder that continues a text")

    for row in rows:
        if len(row.prompt_ids) < 2:
            raise ValueError(f"--score needs a text of two tokens, not {row.prompt!r:.60}")

    for row in rows:
        logprobs, _ = score(sampler.model, row.prompt_ids)
        tokens = texts_of(sampler.tokenizer, row.prompt_ids)[1:]
        n_bytes = len("".join(tokens).encode())
        bits = -sum(logprobs) / BIT
        found = {
            "prompt": row.prompt,
            "ids": row.prompt_ids[1:],
            "tokens": tokens,
            "logprobs": logprobs,
            "bits": bits,
            "bits_per_byte": bits / max(1, n_bytes),
        }

        if sampler.options.json:
            sys.stdout.write(json.dumps(found, ensure_ascii=sys.stdout.isatty()) + "\n")
        else:
            print_table(found)


def print_table(found: dict) -> None:
    """A line for each token, in color on a terminal."""
    console = Console(soft_wrap=True)

    for token, logprob in zip(found["tokens"], found["logprobs"], strict=True):
        bits = -logprob / BIT
        style = STYLES[min(int(bits / 4), 3)]
        console.print(Text(f"{bits:8.3f}  {token!r}", style))

    console.print(Text(f"{found['bits']:8.3f}  bits, {found['bits_per_byte']:.4f} bits per byte"))
