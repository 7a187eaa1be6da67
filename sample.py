"""Sample from a run: options -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from configs.cli import escape, print, run_command
from model.attention_maps import attention_maps, draw_maps
from model.checkpoint import load_run, newest_run
from model.cpu import pack_linears
from model.generate.beams import beam_search
from model.generate.decode import DecodeStep, decode
from model.generate.options import choose_sampling, parse_options, read_texts
from model.generate.prompt import MASK, encode_prompt, fill_masks
from model.generate.stream import TextStream
from model.precision import choose_device, choose_precision

MAX_BATCH = 64


@dataclass
class Row:
    """One sample, and what has become of it."""

    prompt: str
    ids: list[int]  # of the prompt in its template
    sample_id: int
    echo: str  # the prompt, if it is to be continued
    stream: TextStream
    notes: str = ""  # about the masks


class Sampler:
    def __init__(self, options: Namespace) -> None:
        folder = options.run or newest_run()
        run = load_run(folder, options.checkpoint)
        device = choose_device(options.device)
        precision = choose_precision(device, options.precision)
        run.model.to(device, precision.dtype)
        pack_linears(run.model)
        dtype = str(precision.dtype).removeprefix("torch.")
        where = f"{dtype} on {device}, {precision.reason}"
        print(f"{folder}, step {run.step}: {where}", file=sys.stderr)

        self.options = options
        self.model: Any = run.model
        self.tokenizer = run.tokenizer
        self.specials = run.tokenizer.specials
        self.before, self.after = run.tokenizer.template
        # a decoder continues a text, unless it was trained on pairs: then it generates a target
        on_pairs = run.config["objective"]["kind"] == "pairs"
        self.continues = run.model.kind == "decoder" and not on_pairs
        if run.model.kind == "decoder":
            self.after = [self.specials["start"]] if on_pairs else []
        if options.source and self.continues:
            raise ValueError("--source is for a model of pairs; this one continues a --prompt")
        self.sampling = choose_sampling(options, 0.8 if self.continues else 0.0)

    def answer(self, texts: list[str]) -> None:
        """Print each text with its continuation, its target, or the text with its masks filled."""
        options = self.options
        rows = [self.encode(text, number) for text in texts for number in range(options.n)]
        whole = options.json or options.no_stream or len(rows) > 1 or not rows[0].ids
        live = sys.stdout.isatty() and not whole and self.model.kind != "encoder"
        size = MAX_BATCH if options.beams is None else 1

        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            todo = [row for row in batch if row.ids]
            if todo and self.model.kind == "encoder":
                self.fill(todo)
            elif todo:
                for piece in self.generate(todo):
                    if live:
                        show(piece)
            for row in batch:
                if options.json:
                    show(as_json(row))
                elif not live:
                    rule = "---\n" if self.continues and row is not rows[0] else ""
                    show(f"{rule}{row.echo}{row.stream.text}\n{row.notes}")
        if options.attention_map:
            if not rows[0].ids:
                raise ValueError("--attention-map needs a text, and this one is empty")
            self.save_attention_maps(rows[0])

    def encode(self, prompt: str, sample_id: int) -> Row:
        """A decoder begins a text where there is none. Other models have no output for it."""
        limit = self.model.context_length
        template = (self.before, self.after)
        ids = encode_prompt(prompt, self.tokenizer, limit, self.options.slide, template)
        if not self.continues:
            return Row(prompt, ids, sample_id, "", TextStream(self.tokenizer, self.options.stop))
        ids = ids or self.before or [self.specials["end"]]
        stream = TextStream(self.tokenizer, self.options.stop, ids)
        return Row(prompt, ids, sample_id, prompt, stream)

    def generate(self, rows: list[Row]) -> Iterator[str]:
        """Complete each row. Yields the text as it grows, which is that of one row if shown."""
        options = self.options
        inputs: dict[str, Any] = {
            "prompts": [row.ids for row in rows],
            "max_new_tokens": options.max_new_tokens,
            "stop": self.tokenizer.end_ids,
        }
        if self.model.kind == "encoder_decoder":
            inputs["sources"] = inputs["prompts"]
            inputs["prompts"] = [[self.specials["start"]] for _ in rows]
        if options.beams is None:
            inputs["sampling"] = self.sampling
            inputs["row_ids"] = [row.sample_id for row in rows]
            steps: Iterable[DecodeStep] = decode(self.model, **inputs)
        else:
            inputs["length_penalty"] = options.length_penalty
            steps = beam_search(self.model, beams=options.beams, **inputs)

        yield rows[0].echo
        for step in steps:
            for row, i, logprob in zip(rows, step.ids, step.logprobs, strict=True):
                yield row.stream.push(i, logprob)
            if all(row.stream.finish_reason for row in rows):
                break
        for row in rows:
            yield row.stream.finish("length")
        yield "\n"

    def fill(self, rows: list[Row]) -> None:
        """Each text with its masks filled in, and the top predictions for each mask."""
        decode = self.tokenizer.decode
        for row in rows:
            if self.specials["mask"] not in row.ids:
                raise ValueError(f"an encoder fills in {MASK}; there is none in {row.prompt!r:.60}")
        prompts = [row.ids for row in rows]
        results = fill_masks(self.model, prompts, self.specials)
        for row, filled in zip(rows, results, strict=True):
            for number, top in enumerate(filled.predictions, 1):
                row.stream.push(*top[0])
                named = ", ".join(f"{decode([i])!r} {math.exp(p):.3f}" for i, p in top)
                row.notes += f"  {MASK} {number}: {named}\n"
            start = len(self.before)
            end = len(row.ids) - len(self.after)
            row.stream.text = decode(filled.ids[start:end])

    def save_attention_maps(self, row: Row) -> None:
        inputs = {"tokens": row.ids}
        if self.model.kind == "encoder_decoder":
            target = [self.specials["start"], *row.stream.ids[:-1]]
            length = self.model.context_length
            inputs = {"source": row.ids, "tokens": target[:length]}
        maps = attention_maps(self.model, inputs)
        names = self.tokenizer.decode_with_specials
        draw_maps(maps, names, self.options.attention_map)


def show(text: str) -> None:
    """Print exactly this text, but for control characters on a terminal."""
    if sys.stdout.isatty():
        text = escape(text, keep="\n\t")
    sys.stdout.write(text)
    sys.stdout.flush()


def as_json(row: Row) -> str:
    stream = row.stream
    fields = {
        "prompt": row.prompt,
        "text": stream.text,
        "ids": stream.ids,
        "logprobs": stream.logprobs,
        "finish_reason": stream.finish_reason,
    }
    return json.dumps(fields, ensure_ascii=sys.stdout.isatty()) + "\n"


def interact(sampler: Sampler) -> None:
    """One prompt after another; an error or an interrupt ends only its own."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401  line editing and history
    with suppress(EOFError):
        while True:
            prompt = input("> " if sys.stdin.isatty() else "")
            try:
                sampler.answer([prompt])
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print()


def main(args: list[str] | None = None) -> None:
    options = parse_options(args)
    if options.interactive:
        interact(Sampler(options))
    else:
        texts = read_texts(options)  # before a model is loaded in vain
        Sampler(options).answer(texts)


if __name__ == "__main__":
    sys.exit(run_command(main))
