"""The story of a sample: argv -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import math
import sys
from contextlib import suppress

from configs.cli import as_utf8, escape, print, run_command
from model.attention_maps import attention_maps, draw_maps
from model.checkpoint.files import RUNS_DIR, newest_run
from model.checkpoint.load import load_run, move_for_inference
from model.generate.beams import beam_search
from model.generate.decode import decode
from model.generate.options import check_options, parse_options, read_texts
from model.generate.prompt import MASK, encode_prompt, fill_masks
from model.generate.stream import TextStream
from model.precision import choose_device, choose_precision

MAX_BATCH = 64


class Sampler:
    """A model and its tokenizer, with the options and the template around each text."""

    def __init__(self, options):
        folder = options.run or newest_run(RUNS_DIR)
        run = load_run(folder, options.checkpoint)
        model, tokenizer, objective = run.model, run.tokenizer, run.config.get("objective")
        self.model, self.tokenizer, self.options = model, tokenizer, options
        on_pairs = isinstance(objective, dict) and objective.get("kind") == "pairs"
        self.is_seq2seq = (
            on_pairs or model.kind == "encoder_decoder"
        )  # generates a target, no continuation
        check_options(options, model.kind, tokenizer, self.is_seq2seq)
        device = choose_device(options.device)
        precision = choose_precision(device, options.precision)
        move_for_inference(
            model, device, precision.dtype
        )  # 16-bit weights are read in half the time
        dtype = str(precision.dtype).removeprefix("torch.")
        print(
            f"{folder}, step {run.step}: {dtype} on {device}, {precision.reason}", file=sys.stderr
        )
        before, after = tokenizer.template
        if model.kind == "decoder":  # trained on pairs, it expects a start token behind the source
            after = [tokenizer.specials["start"]] if self.is_seq2seq else []
        self.template = before, after

    def encode(self, text):
        slide = self.options.slide
        return encode_prompt(text, self.tokenizer, self.model.context_length, slide, self.template)


def in_batches(function, rows):
    for start in range(0, len(rows), MAX_BATCH):
        yield from function(rows[start : start + MAX_BATCH])


def print_samples(sampler, texts):
    """`n` samples for each text."""
    options, seq2seq = sampler.options, sampler.is_seq2seq
    rows = [
        (text, sampler.encode(text), sample_id) for text in texts for sample_id in range(options.n)
    ]
    live = sys.stdout.isatty() and len(rows) == 1 and not options.json and not options.no_stream
    streams = in_batches(lambda batch: generate_batch(sampler, batch, live), rows)
    for number, ((text, *_), stream) in enumerate(zip(rows, streams, strict=True)):
        if options.json:
            print_json(text, stream.text, stream.ids, stream.logprobs, stream.finish_reason)
        elif not live:
            separator, prompt = ("", "") if seq2seq else ("---\n" if number else "", text)
            show(f"{separator}{prompt}{stream.text}\n")
    if options.attention_map:
        save_attention_maps(sampler, rows[0][1], stream.ids[:-1])


def generate_batch(sampler, rows, live):
    """A finished TextStream for each row (text, ids, sample id), printed as it grows if `live`."""
    texts, prompts, sample_ids = map(list, zip(*rows, strict=True))
    prefixes = [() if sampler.is_seq2seq else prompt for prompt in prompts]
    streams = [TextStream(sampler.tokenizer, sampler.options.stop, prefix) for prefix in prefixes]
    emit = show if live else lambda text: None
    emit("" if sampler.is_seq2seq else texts[0])
    for row, i, logprob in generate_tokens(sampler, prompts, sample_ids):
        emit(streams[row].push(i, logprob))
        if all(stream.finish_reason for stream in streams):
            break
    rest = [stream.finish("length") for stream in streams]
    emit(f"{rest[0]}\n")
    return streams


def generate_tokens(sampler, prompts, sample_ids):
    """(row, id, log-probability) of each new token."""
    model, options, specials = sampler.model, sampler.options, sampler.tokenizer.specials
    limits, sources = (
        {"max_new_tokens": options.max_new_tokens, "stop": sampler.tokenizer.end_ids},
        None,
    )
    if model.kind == "encoder_decoder":
        sources, prompts = prompts, [[specials["start"]] for _ in prompts]
    if options.beams is not None:
        limits |= {"beams": options.beams, "length_penalty": options.length_penalty}
        for row, (source, prompt) in enumerate(zip(sources, prompts, strict=True)):
            best = beam_search(model, source, prompt, **limits)
            yield from ((row, i, logprob) for i, logprob in zip(*best, strict=True))
        return
    limits |= {"sampling": options.sampling, "sources": sources, "row_ids": sample_ids}
    for step in decode(model, prompts, **limits):
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
    filled = in_batches(lambda batch: fill_masks(sampler.model, batch, mask), rows)
    for text, (ids, predictions) in zip(texts, filled, strict=True):
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
    maps = attention_maps(sampler.model, inputs)
    draw_maps(maps, sampler.tokenizer.decode_with_specials, sampler.options.attention_map)


def show(text):
    """Print exactly this text, but for control characters on a terminal."""
    sys.stdout.write(escape(text, keep="\n\t") if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(prompt, text, ids, logprobs, finish_reason):
    row = dict(prompt=prompt, text=text, ids=ids, logprobs=logprobs, finish_reason=finish_reason)
    ensure_ascii = sys.stdout.isatty() or sys.stdout.encoding.lower() != "utf-8"
    sys.stdout.write(f"{json.dumps(row, ensure_ascii=ensure_ascii)}\n")
    sys.stdout.flush()


def interactive(sampler, handler):
    """One prompt after another until the end of input; an error or an interrupt only ends its own prompt."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401  line editing and history
    sys.stdin.reconfigure(errors="surrogateescape")  # a line that is not UTF-8 is refused by itself
    while True:
        try:
            text = as_utf8(input("> " if sys.stdin.isatty() else "")).removeprefix(
                "\ufeff"
            )  # of a pipe
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
    sampler = Sampler(options)
    handler = print_filled_masks if sampler.model.kind == "encoder" else print_samples
    if options.interactive:
        return interactive(sampler, handler)
    try:
        handler(sampler, texts)
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # so that the shell's prompt begins on its own line
        raise


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
