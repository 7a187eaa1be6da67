"""Sample from a run: options -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.cli import escape, print, run_command
from configs.parts import load_parts
from data.chat import ChatTemplate, Messages
from data.objectives import OBJECTIVES, Objective
from model.attention_maps import attention_maps, draw_maps
from model.checkpoint import LoadedRun, load_run
from model.generate.beams import beam_search
from model.generate.decode import generator_of
from model.generate.encoder import filled, vectors
from model.generate.logits_processor import NO_RULES, LogitsProcessor
from model.generate.options import choose_sampling, parse_options, read_texts
from model.generate.prompt import encode_prompt
from model.generate.stream import TextStream
from model.inference import prepare
from model.precision import choose_device, choose_precision
from model.runs import newest_run

MAX_BATCH = 64


@dataclass
class Row:
    """One sample: its prompt and its output so far."""

    prompt: Any  # text, or messages
    ids: list[int]  # the prompt's, with its template
    sample_id: int
    stream: TextStream
    shown: str = ""

    def conversation(self) -> Messages:
        return [*self.prompt, {"role": "assistant", "content": self.stream.text}]


class Sampler:
    def __init__(self, options: Namespace) -> None:
        if options.parts:
            load_parts(options.parts)
        folder = options.run or newest_run()
        if (folder / "config.yaml").exists():
            run = load_run(folder, options.checkpoint)
        else:
            from model.pretrained import load_pretrained

            run = load_pretrained(str(folder), options.checkpoint)

        precision = choose_precision(choose_device(options.device), options.precision)
        prepare(run.model.to(precision.device, precision.dtype))
        dtype = str(precision.dtype).removeprefix("torch.")
        where = f"{dtype} on {precision.device}, {precision.reason}"
        print(f"{folder}, step {run.step}: {where}", file=sys.stderr)

        self.options = options
        self.model: Any = run.model
        self.tokenizer = run.tokenizer

        # a decoder continues a text, unless it was trained on pairs: then it generates a target
        kind = str(run.model.kind)
        objective = OBJECTIVES.get(run.config["objective"]["kind"], Objective)  # imported: auto
        continues = kind == "decoder" and objective.input_kind != "pairs"
        self.sampling = choose_sampling(options, kind, continues)
        self.continues = continues and not options.chat

        is_imported = run.config.get("code") is None  # a run trained here has the code's hash
        has_head = run.config["model"]["head"].get("mlm_transform") is not None
        self.is_headless = is_imported and not has_head

        specials = run.tokenizer.specials
        before, after = run.tokenizer.template
        if continues:
            after = []  # it would end the text
        elif kind == "decoder":
            after = [run.tokenizer.start]  # starts a target
        self.encode_text = partial(
            encode_prompt,
            tokenizer=run.tokenizer,
            context_length=run.config["model"]["context_length"],
            slide=options.slide,
            template=[before, after],
            around=objective.prompt,
            special=options.special,
        )
        # the ids of an empty prompt; if there are none, it has no output
        self.empty: list[int] = []
        if options.embed:
            self.empty = before + after
        elif continues:
            self.empty = before or [specials["end"]]
        self.rules = generation_rules(run, options)

        self.chat = ChatTemplate(run.tokenizer) if options.chat else None
        self.system = [{"role": "system", "content": text} for text in options.system]
        self.messages = self.system  # the conversation so far
        if self.chat and not self.chat.is_own and objective.input_kind != "chat":
            raise ValueError("--chat needs a run of data=chat, or an import with a chat template")

    def reply(self, text: str) -> None:
        """Print an answer. If it is interrupted, the conversation keeps what was printed."""
        turn = {"role": "user", "content": text}
        row = self.encode([*self.messages, turn])
        context = self.model.context_length
        n_new = min(self.options.max_new_tokens, context // 2)  # there should be room for these
        is_full = len(row.ids) + n_new > context

        if is_full and self.messages != self.system:
            row = self.encode([*self.system, turn])
            if len(row.ids) < context:
                print("the context is full: earlier turns are forgotten", file=sys.stderr)

        try:
            self.write([row])
        except KeyboardInterrupt:
            print()
        self.messages = row.conversation()

    def answer(self, texts: list[Any]) -> None:
        numbers = range(self.options.n)
        self.write([self.encode(text, number) for text in texts for number in numbers])

    def write(self, rows: list[Row]) -> None:
        """Print each text with its continuation, its target, or the text with its masks filled."""
        options = self.options
        if options.score:
            from model.generate.score import print_scores

            return print_scores(self, rows)
        complete = self.generate
        if self.model.kind == "encoder":
            complete = partial(vectors if options.embed else filled, self)
        streaming = len(rows) == 1 and not options.json and not options.no_stream
        size = MAX_BATCH if options.beams is None else 1

        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            todo = [row for row in batch if row.ids]
            pieces = complete(todo) if todo else ()
            for row, piece in pieces:
                row.shown += piece
                if streaming:
                    show(piece)

            for row in batch:
                if options.json:
                    show(as_json(row))
                elif not streaming:
                    rule = "---\n" if self.continues and row is not rows[0] else ""
                    show(rule + (row.shown or "\n"))

        if options.attention_map or options.explain:
            self.save_views(rows[0])

    def encode(self, prompt: Any, sample_id: int = 0) -> Row:
        options = self.options
        if not self.chat:
            ids = self.encode_text(prompt) or self.empty
        elif prompt[-1]["role"] == "assistant":
            raise ValueError(f"the last message is the assistant's: {prompt[-1]['content']!r:.60}")
        else:
            ids = self.chat.encode_prompt(prompt)

        if not ids and (options.embed or options.attention_map or options.explain):
            raise ValueError("the text is empty")
        stream = TextStream(self.tokenizer, options.stop, ids if self.continues else ())
        return Row(prompt, ids, sample_id, stream)

    def generate(self, rows: list[Row]) -> Iterator[tuple[Row, str]]:
        """Complete each row, and yield its text as it grows."""
        options = self.options
        prompts = [row.ids for row in rows]
        n_new = options.max_new_tokens
        stop = self.tokenizer.end_ids
        inputs: dict[str, Any] = {"max_new_tokens": n_new, "stop": stop}
        if self.model.kind == "encoder_decoder":
            inputs["sources"] = prompts
            prompts = [[self.tokenizer.start]] * len(rows)
        if self.rules:
            inputs["processor"] = LogitsProcessor(self.rules, prompts, n_new, stop)

        search: Any = generator_of(self.model)
        if options.beams is None:
            inputs["sampling"] = self.sampling
            inputs["row_ids"] = [row.sample_id for row in rows]
        else:
            search = partial(beam_search, self.model)
            inputs["beams"] = options.beams
            inputs["length_penalty"] = options.length_penalty

        for row in rows:
            yield row, (row.prompt if self.continues else "")
        for step in search(prompts, **inputs):
            for row, i, logprob in zip(rows, step.ids, step.logprobs, strict=True):
                yield row, row.stream.push(i, logprob)
            if all(row.stream.finish_reason for row in rows):
                break
        for row in rows:
            yield row, row.stream.finish("length") + "\n"

    def save_views(self, row: Row) -> None:
        options = self.options
        inputs = {"tokens": row.ids}
        if self.model.kind == "encoder_decoder":
            target = [self.tokenizer.start, *row.stream.ids]
            inputs = {"source": row.ids, "tokens": target[: self.model.context_length]}
        if options.attention_map:
            maps = attention_maps(self.model, inputs)
            draw_maps(maps, inputs, self.tokenizer, options.attention_map)
        if options.explain:
            from model.explain import write_page

            write_page(options.explain, self.model, self.tokenizer, inputs, row.stream.ids)


def generation_rules(run: LoadedRun, options: Namespace) -> dict[str, Any]:
    """The rules of an imported model, except those that the command line overrides."""
    found = run.config["generation"]
    rules = {name: found[name] for name in NO_RULES if found.get(name) is not None}
    if options.repetition_penalty is not None:
        rules.pop("repetition_penalty", None)
    return NO_RULES | rules if rules else {}


def show(text: str) -> None:
    """Print the text unchanged, except that control characters are escaped on a terminal."""
    if sys.stdout.isatty():
        text = escape(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def as_json(row: Row) -> str:
    fields = {"prompt": row.prompt}
    if isinstance(row.prompt, list):
        fields = {"messages": row.conversation()}
    for name in ("text", "ids", "logprobs", "finish_reason"):
        fields[name] = getattr(row.stream, name)
    return json.dumps(fields, ensure_ascii=sys.stdout.isatty()) + "\n"


def interact(sampler: Sampler) -> None:
    """Read one prompt after another; an error or an interrupt ends only the current one."""
    with suppress(ImportError):  # not available on every system
        import readline  # noqa: F401  line editing and history
    with suppress(EOFError):
        while True:
            try:
                prompt = input("> " if sys.stdin.isatty() else "")
                if not sampler.chat:
                    sampler.answer([prompt])
                elif prompt.strip():
                    sampler.reply(prompt)
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print()


def main(args: list[str] | None = None) -> None:
    options = parse_options(args)
    takes_turns = options.chat and not options.json

    if options.interactive or takes_turns:
        interact(Sampler(options))
    else:
        texts = read_texts(options)  # first, so that an error saves loading the model
        Sampler(options).answer(texts)


if __name__ == "__main__":
    sys.exit(run_command(main))
