"""From a checkpoint to text: open a run -> read a prompt -> write on -> show.

python sample.py --prompt "def "
"""

import json
import math
import os
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch.nn as nn

from configs.cli import run_command
from data.tokenizers.tokenizer import NO_TEMPLATE, Tokenizer
from model.attention_maps import attention_maps, draw_maps
from model.checkpoint.files import RUNS_DIR, newest_run
from model.checkpoint.load import load_run
from model.generate.beams import beam_search, check_search
from model.generate.decode import check_request, decode
from model.generate.options import (
    check_options,
    check_sampled,
    check_stops,
    join_dashed_values,
    make_parser,
    read_texts,
)
from model.generate.prompt import MASK, encode_prompt, fill_masks
from model.generate.sampling import Sampling, check_sampling
from model.generate.stream import TextStream, escape_control
from model.precision import choose_device, choose_precision

TOGETHER = 64  # rows written at once
LENGTH = 200  # new tokens, unless asked otherwise
WARMTH = 0.8  # the temperature of a text that goes on freely; an answer is the likeliest


class Sampler(NamedTuple):
    """A model, and what is asked of it."""

    model: nn.Module
    tokenizer: Tokenizer
    options: Namespace
    answers: bool  # whether it has learned to answer texts, not to go on from them
    template: list  # ids that it has learned to see before and after a text

    def sampling(self):
        given = {name: getattr(self.options, name) for name in Sampling._fields}
        usual = {"temperature": 0.0 if self.answers else WARMTH}
        return Sampling(**usual | {name: value for name, value in given.items() if value is not None})

    def length(self):
        return LENGTH if self.options.max_new_tokens is None else self.options.max_new_tokens

    def encode(self, text):
        return encode_prompt(
            text, self.tokenizer, self.model.context_length, self.options.slide, self.template
        )

    def ids(self, text):
        """(prompt, source)"""
        if self.model.kind == "encoder_decoder":
            return [self.tokenizer.specials["start"]], self.encode(text)
        return self.encode(text), None

    def check(self):
        """Before any text is known."""
        check_sampled(self.options, self.sampling().temperature)
        check_stops(self.options, self.tokenizer)
        if self.model.kind != "encoder":
            check_request(
                self.model, [[0]], [[0]] if self.model.kind == "encoder_decoder" else None, self.length()
            )
            check_sampling(self.sampling(), self.tokenizer.vocab_size)
        if self.options.beams is not None:
            check_search(self.options.beams, self.penalty())

    def penalty(self):
        return 1.0 if self.options.length_penalty is None else self.options.length_penalty

    def said(self, prompts, sources, numbers):
        """(row, id, log of its probability) of all that is written, as it comes."""
        asked = {"max_new_tokens": self.length(), "stop": self.tokenizer.specials["end"]}
        if self.options.beams is not None:
            asked |= {"beams": self.options.beams, "length_penalty": self.penalty()}
            return searched(self.model, sources, prompts, asked)
        told = decode(
            self.model, prompts, sources=sources, numbers=numbers, sampling=self.sampling(), **asked
        )
        return drawn(told, self.options.json)


def searched(model, sources, prompts, asked):
    for row, (source, prompt) in enumerate(zip(sources, prompts, strict=True)):
        answer = beam_search(model, source, prompt, **asked)
        yield from ((row, i, logprob) for i, logprob in zip(*answer, strict=True))


def drawn(told, with_logprobs):
    for step in told:
        logprobs = step.logprobs() if with_logprobs else [None] * len(step.ids)
        for row, (i, logprob) in enumerate(zip(step.ids, logprobs, strict=True)):
            if i is not None:
                yield row, i, logprob


def prompt_template(opened, answers):
    """What goes on learning here learns texts without a frame. A decoder goes on from the text itself, or
    answers it after a start token."""
    before, after = NO_TEMPLATE if opened.config.get("init_from") else opened.tokenizer.template
    if opened.model.kind == "decoder":
        after = [opened.tokenizer.specials["start"]] if answers else []
    return [before, after]


def open_sampler(options):
    folder = newest_run(RUNS_DIR) if options.run is None else Path(options.run)
    opened = load_run(folder, options.checkpoint)
    model, objective = opened.model, opened.config.get("objective")
    check_options(options, model.kind)
    pairs = isinstance(objective, dict) and objective.get("kind") == "pairs"
    answers = pairs or model.kind == "encoder_decoder"
    sampler = Sampler(model, opened.tokenizer, options, answers, prompt_template(opened, answers))
    sampler.check()
    precision = choose_precision(choose_device(options.device), options.precision)
    model.to(precision.device, precision.dtype)  # weights half as wide are read in half the time
    numbers = str(precision.dtype).removeprefix("torch.")
    how = f"{numbers} on {precision.device}, {precision.reason}"
    print(f"{folder}, step {opened.step}: {how}", file=sys.stderr)
    return sampler


def write(sampler, texts):
    """What a model that writes makes of each text, `n` times each."""
    options = sampler.options
    rows = [(text, *sampler.ids(text), number) for text in texts for number in range(options.n or 1)]
    streams = sys.stdout.isatty() and len(rows) == 1 and not options.json and not options.no_stream
    for start in range(0, len(rows), TOGETHER):
        batch = rows[start : start + TOGETHER]
        voices = speak(sampler, batch, streams)
        for place, ((text, *_), voice) in enumerate(zip(batch, voices, strict=True), start):
            if options.json:
                show_json(text, voice.text, voice.ids, voice.logprobs, voice.stop)
            elif not streams:
                between = "---\n" if place and not sampler.answers else ""
                show(f"{between}{'' if sampler.answers else text}{voice.text}\n")
    if options.attention_map:
        _, prompt, source, _ = rows[0]
        seen = (
            {"tokens": prompt}
            if source is None
            else {"source": source, "tokens": prompt + voices[0].ids[:-1]}
        )
        look(sampler, seen)


def speak(sampler, rows, streams):
    """A voice for each of these rows, which are written together; where it streams, it is heard meanwhile."""
    texts, prompts, sources, numbers = map(list, zip(*rows, strict=True))
    befores = [() if sampler.answers else prompt for prompt in prompts]
    voices = [TextStream(sampler.tokenizer, sampler.options.stop or (), before) for before in befores]
    said = sampler.said(prompts, None if sources[0] is None else sources, numbers)
    if streams and not sampler.answers:
        show(texts[0])
    for row, i, logprob in said:
        told = "" if voices[row].stop else voices[row].hear(i, logprob)
        if streams:
            show(told)
        if all(voice.stop for voice in voices):
            break
    rest = ["" if voice.stop else voice.finish("length") for voice in voices]
    if streams:
        show(f"{rest[0]}\n")
    return voices


def guess(sampler, texts):
    """What an encoder takes to stand behind each mask."""
    tokenizer, rows = sampler.tokenizer, [sampler.encode(text) for text in texts]
    mask = tokenizer.specials["mask"]
    if unmasked := [text for text, row in zip(texts, rows, strict=True) if mask not in row]:
        raise ValueError(f"an encoder fills in {MASK}, and there is none in {unmasked[0]!r:.60}")
    batches = (rows[start : start + TOGETHER] for start in range(0, len(rows), TOGETHER))
    found = (filled for batch in batches for filled in fill_masks(sampler.model, batch, mask))
    for text, filled in zip(texts, found, strict=True):
        likeliest, ids = [best[0] for best in filled.guesses], strip_template(filled.ids, sampler.template)
        if sampler.options.json:
            show_json(text, tokenizer.decode(ids), *map(list, zip(*likeliest, strict=True)), None)
            continue
        show(f"{tokenizer.decode_with_specials(ids)}\n")
        for number, best in enumerate(filled.guesses, 1):
            words = (
                f"{tokenizer.decode_with_specials([i])!r} {math.exp(logprob):.3f}" for i, logprob in best
            )
            show(f"  {MASK} {number}: {', '.join(words)}\n")
    if sampler.options.attention_map:
        look(sampler, {"tokens": rows[0]})


def strip_template(ids, template):
    before, after = map(len, template)
    return ids[before : len(ids) - after]


def look(sampler, texts):
    texts = {name: ids[: sampler.model.context_length] for name, ids in texts.items()}
    draw_maps(
        attention_maps(sampler.model.float(), texts), sampler.tokenizer.show, sampler.options.attention_map
    )


def show(text):
    print(escape_control(text) if sys.stdout.isatty() else text, end="", flush=True)


def show_json(prompt, text, ids, logprobs, stop):
    row = {"prompt": prompt, "text": text, "ids": ids, "logprobs": logprobs, "stop": stop}
    print(json.dumps(row, ensure_ascii=sys.stdout.isatty()), flush=True)


def converse(sampler, respond):
    """One prompt after another, until the end of input; what is wrong with one is said, and the next is asked
    for."""
    with suppress(ImportError):  # not every system has it
        import readline  # noqa: F401  keeps what was typed, for the arrow keys
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").removeprefix("\ufeff")  # of a pipe, perhaps
        except EOFError:
            return
        try:
            respond(sampler, [text])
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:  # enough of this one
            print()


def main(words):
    options = make_parser().parse_args(join_dashed_values(words))
    texts = [] if options.interactive else read_texts(options)
    sampler = open_sampler(options)
    respond = guess if sampler.model.kind == "encoder" else write
    if options.interactive:
        return converse(sampler, respond)
    try:
        respond(sampler, texts)
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print()  # the shell's next prompt has a line of its own
        raise


def open_closed():
    """A stream that the shell has closed leads nowhere."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  it stays open


if __name__ == "__main__":
    open_closed()
    sys.exit(run_command(main, sys.argv[1:]))
