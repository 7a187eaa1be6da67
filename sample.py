"""The story of a sample: argv -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import math
import os
import sys
from argparse import Namespace
from contextlib import suppress
from dataclasses import fields
from typing import NamedTuple

import torch.nn as nn

from configs.cli import run_command
from configs.errors import CheckpointError
from data.tokenizers.tokenizer import NO_TEMPLATE, Tokenizer
from model.attention_maps import attention_maps, draw_maps
from model.checkpoint.files import RUNS_DIR, newest_run
from model.checkpoint.load import load_run
from model.generate.beams import beam_search
from model.generate.decode import decode
from model.generate.options import check_options, parse_options, read_texts
from model.generate.prompt import MASK, encode_prompt, fill_masks
from model.generate.sampling import Sampling
from model.generate.stream import TextStream, escape_control
from model.precision import choose_device, choose_precision

MAX_BATCH = 64


class Sampler(NamedTuple):
    model: nn.Module
    tokenizer: Tokenizer
    options: Namespace
    is_seq2seq: bool  # trained on pairs: it generates a target, not a continuation
    template: list  # ids before and after a text, as in training

    def encode(self, text):
        context_length, slide = self.model.context_length, self.options.slide
        return encode_prompt(text, self.tokenizer, context_length, slide, self.template)


def load_sampler(options):
    folder = options.run or newest_run(RUNS_DIR)
    if not folder.is_dir():
        raise CheckpointError(f"no such run: {folder}")
    run = load_run(folder, options.checkpoint)
    model, objective = run.model, run.config.get("objective")
    on_pairs = isinstance(objective, dict) and objective.get("kind") == "pairs"
    is_seq2seq = on_pairs or model.kind == "encoder_decoder"
    check_options(options, model.kind, run.tokenizer, is_seq2seq)
    precision = choose_precision(choose_device(options.device), options.precision)
    model.to(precision.device, precision.dtype)  # 16-bit weights are read in half the time
    dtype = str(precision.dtype).removeprefix("torch.")
    print(f"{folder}, step {run.step}: {dtype} on {precision.device}, {precision.reason}", file=sys.stderr)
    return Sampler(model, run.tokenizer, options, is_seq2seq, prompt_template(run, is_seq2seq))


def prompt_template(run, is_seq2seq):
    """Training here uses no template, even from a model that had one; a decoder trained on pairs expects a
    start token behind the source."""
    before, after = NO_TEMPLATE if run.config.get("init_from") else run.tokenizer.template
    if run.model.kind == "decoder":
        after = [run.tokenizer.specials["start"]] if is_seq2seq else []
    return [before, after]


def print_samples(sampler, texts):
    """`n` samples for each text."""
    options, seq2seq = sampler.options, sampler.is_seq2seq
    rows = [(text, sampler.encode(text), sample_id) for text in texts for sample_id in range(options.n)]
    live = sys.stdout.isatty() and len(rows) == 1 and not options.json and not options.no_stream
    for start in range(0, len(rows), MAX_BATCH):
        batch = rows[start : start + MAX_BATCH]
        streams = generate_batch(sampler, batch, live)
        for number, ((text, *_), stream) in enumerate(zip(batch, streams, strict=True), start):
            if options.json:
                print_json(text, stream.text, stream.ids, stream.logprobs, stream.finish_reason)
            elif not live:
                separator, prompt = ("", "") if seq2seq else ("---\n" if number else "", text)
                show(f"{separator}{prompt}{stream.text}\n")
    if options.attention_map:
        save_attention_maps(sampler, rows[0][1], streams[0].ids[:-1])


def generate_batch(sampler, rows, live):
    """A finished TextStream for each row (text, ids, sample id), printed as it grows if `live`."""
    texts, prompts, sample_ids = map(list, zip(*rows, strict=True))
    prefixes = [() if sampler.is_seq2seq else prompt for prompt in prompts]
    streams = [TextStream(sampler.tokenizer, sampler.options.stop, prefix) for prefix in prefixes]
    if live and not sampler.is_seq2seq:
        show(texts[0])
    for row, i, logprob in generate_tokens(sampler, prompts, sample_ids):
        text = streams[row].push(i, logprob)
        if live:
            show(text)
        if all(stream.finish_reason for stream in streams):
            break
    rest = [stream.finish("length") for stream in streams]
    if live:
        show(f"{rest[0]}\n")
    return streams


def generate_tokens(sampler, prompts, sample_ids):
    """(row, id, log-probability) of each new token."""
    model, options, specials = sampler.model, sampler.options, sampler.tokenizer.specials
    limits, sources = {"max_new_tokens": options.max_new_tokens, "stop": specials["end"]}, None
    if model.kind == "encoder_decoder":
        sources, prompts = prompts, [[specials["start"]] for _ in prompts]
    if options.beams is not None:
        limits |= {"beams": options.beams, "length_penalty": options.length_penalty}
        for row, (source, prompt) in enumerate(zip(sources, prompts, strict=True)):
            best = beam_search(model, source, prompt, **limits)
            yield from ((row, i, logprob) for i, logprob in zip(*best, strict=True))
        return
    sampling = Sampling(**{field.name: getattr(options, field.name) for field in fields(Sampling)})
    for step in decode(model, prompts, sources=sources, row_ids=sample_ids, sampling=sampling, **limits):
        logprobs = step.logprobs() if options.json else [None] * len(step.ids)
        for row, (i, logprob) in enumerate(zip(step.ids, logprobs, strict=True)):
            if i is not None:
                yield row, i, logprob


def print_filled_masks(sampler, texts):
    """Each text with its masks filled in, and the top-5 predictions for each mask."""
    tokenizer, rows = sampler.tokenizer, [sampler.encode(text) for text in texts]
    mask, name = tokenizer.specials["mask"], tokenizer.decode_with_specials
    before, after = sampler.template
    if unmasked := [text for text, row in zip(texts, rows, strict=True) if mask not in row]:
        raise ValueError(f"an encoder fills in {MASK}; there is no {MASK} in {unmasked[0]!r:.60}")
    for start in range(0, len(rows), MAX_BATCH):
        batch = rows[start : start + MAX_BATCH]
        filled = fill_masks(sampler.model, batch, mask)
        for text, (ids, predictions) in zip(texts[start:], filled, strict=False):
            ids = ids[len(before) : len(ids) - len(after)]
            if sampler.options.json:
                best, logprobs = [top[0] for top, _ in predictions], [top[0] for _, top in predictions]
                print_json(text, tokenizer.decode(ids), best, logprobs, None)
                continue
            show(f"{name(ids)}\n")
            for number, top in enumerate(predictions, 1):
                named = (f"{name([i])!r} {math.exp(p):.3f}" for i, p in zip(*top, strict=True))
                show(f"  {MASK} {number}: {', '.join(named)}\n")
    if sampler.options.attention_map:
        save_attention_maps(sampler, rows[0])


def save_attention_maps(sampler, ids, generated=()):
    inputs = {"tokens": ids}
    if sampler.model.kind == "encoder_decoder":
        inputs = {"source": ids, "tokens": [sampler.tokenizer.specials["start"], *generated]}
    inputs = {name: ids[: sampler.model.context_length] for name, ids in inputs.items()}
    maps = attention_maps(sampler.model.float(), inputs)
    draw_maps(maps, sampler.tokenizer.decode_with_specials, sampler.options.attention_map)


def show(text):
    print(escape_control(text) if sys.stdout.isatty() else text, end="", flush=True)


def print_json(prompt, text, ids, logprobs, finish_reason):
    row = dict(prompt=prompt, text=text, ids=ids, logprobs=logprobs, finish_reason=finish_reason)
    print(json.dumps(row, ensure_ascii=sys.stdout.isatty()), flush=True)


def interactive(sampler, handler):
    """One prompt after another until the end of input; an error or an interrupt only ends its own prompt."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401  line editing and history
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").removeprefix("\ufeff")  # a pipe may have a BOM
        except EOFError:
            return
        try:
            handler(sampler, [text])
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print()


def main(args):
    options = parse_options(args)
    texts = None if options.interactive else read_texts(options)
    sampler = load_sampler(options)
    handler = print_filled_masks if sampler.model.kind == "encoder" else print_samples
    if texts is None:
        return interactive(sampler, handler)
    try:
        handler(sampler, texts)
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # so that the shell's prompt begins on its own line
        raise


def reopen_closed_streams():
    """A standard stream that the shell has closed leads to /dev/null."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  it stays open


if __name__ == "__main__":
    reopen_closed_streams()
    sys.exit(run_command(main, sys.argv[1:]))
