"""Sample from a run: options -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.cli import escape, print0, run_command
from configs.parts import load_parts
from data.objectives import OBJECTIVES, Objective
from model.checkpoint import LoadedRun, load_run
from model.generate.beams import beam_search
from model.generate.conversation import Conversation, interact, with_answer
from model.generate.decode import generator_of
from model.generate.encoder import classified, filled, vectors
from model.generate.logits_processor import LogitsProcessor, generation_rules
from model.generate.options import choose_sampling, parse_options, read_texts
from model.generate.text import TextStream, encode_prompt
from model.inference import prepare
from model.precision import choose_device, choose_precision
from model.runs import newest_run

MAX_BATCH = 64


@dataclass
class Row:
    """One sample: its prompt and its output so far."""

    prompt: Any  # text, messages or (of a server) ids
    prompt_ids: list[int]  # with its template
    sample_id: int
    stream: TextStream
    shown: str = ""
    probabilities: dict[str, float] | None = None  # of a classifier: of each class


def open_run(options: Namespace) -> LoadedRun:
    """The run, with its model ready for inference."""
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
    print0(f"{folder}, step {run.step}: {where}", file=sys.stderr)
    return run


class Sampler:
    """A run, and what the options ask of it."""

    def __init__(self, options: Namespace, run: LoadedRun | None = None):
        self.options = options
        self.run = run or open_run(options)
        self.model: Any = self.run.model
        self.tokenizer = self.run.tokenizer

        config = self.run.config
        objective = OBJECTIVES.get(config["objective"]["kind"], Objective)  # auto, if imported
        kind = str(self.model.kind)
        if self.model.classes and not options.embed:
            kind = "classifier"
        continues = kind == "decoder" and objective.input_kind != "pairs"
        self.sampling = choose_sampling(options, kind, continues)
        rules = self.tokenizer.files.get("generation_config.json")  # of an imported model
        self.rules = generation_rules(rules, options) if rules else {}

        # usually a decoder continues its prompt, with which the output begins
        self.echoes = continues and not options.chat
        # ids around a prompt, such as BERT's [CLS] and [SEP] (a chat has a template of text)
        before, _ = self.tokenizer.template  # what is after a prompt would end the text
        self.template = [before, []]
        self.around = objective.prompt
        self.empty = before or [self.tokenizer.specials["end"]]  # in place of no ids
        self.complete = self.generate  # yields (row, the next piece of its text)

        if not continues:
            self.set_up_other_task(kind)
        if options.chat:
            self.chat = Conversation(self, is_trained=objective.input_kind == "chat")

    def set_up_other_task(self, kind: str) -> None:
        """Set up what else a model may do with a prompt: generate a target, fill in masks, or tell
        a class or a vector."""
        before, after = self.tokenizer.template
        self.empty = []  # without ids, a prompt has no output

        if kind == "decoder":
            after = [self.tokenizer.start]  # starts a target
        elif kind == "classifier":
            self.complete = partial(classified, self)
        elif self.options.embed:
            self.complete = partial(vectors, self)
            self.empty = before + after
        elif kind == "encoder":
            self.complete = partial(filled, self)
        self.template = [before, after]

    def answer(self, texts: list) -> None:
        """Print each text with its continuation, its target, or the text with its masks filled."""
        rows = [self.encode(text, number) for text in texts for number in range(self.options.n)]
        if self.options.score:
            from model.generate.score import print_scores

            print_scores(self, rows)
        else:
            self.write(rows)

    def write(self, rows: list[Row]) -> None:
        options = self.options
        streaming = len(rows) == 1 and not options.json and not options.no_stream
        size = MAX_BATCH if options.beams is None else 1

        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            todo = [row for row in batch if row.prompt_ids]
            pieces = self.complete(todo) if todo else ()

            for row, piece in pieces:
                row.shown += piece
                if streaming:
                    show(piece)

            for row in batch:
                if options.json:
                    show(as_json(row))
                elif not streaming:
                    separator = "---\n" if self.echoes and row is not rows[0] else ""
                    show(separator + (row.shown or "\n"))

        if options.explain:
            self.explain(rows[0])

    def encode(self, prompt: Any, sample_id: int = 0) -> Row:
        options = self.options
        if options.chat:
            ids = self.chat.encode(prompt)
        elif isinstance(prompt, list):
            ids = prompt
        else:
            ids = encode_prompt(
                prompt,
                self.tokenizer,
                self.model.context_length,
                options.slide,
                self.template,
                self.around,
                options.special,
            )

        ids = ids or self.empty
        if not ids and (options.embed or options.explain or self.model.classes):
            raise ValueError("the text is empty")

        stream = TextStream(self.tokenizer, options.stop, ids if self.echoes else ())
        return Row(prompt, ids, sample_id, stream)

    def generate(self, rows: list[Row]) -> Iterator[tuple[Row, str]]:
        """Complete each row, and yield its text as it grows."""
        options = self.options
        prompts = [row.prompt_ids for row in rows]
        n_new = options.max_new_tokens
        end_ids = self.tokenizer.end_ids

        # ids that end a text; the strings of --stop are the stream's
        inputs = {"max_new_tokens": n_new, "stop": end_ids}
        if self.model.kind == "encoder_decoder":
            inputs["sources"] = prompts
            prompts = [[self.tokenizer.start]] * len(rows)

        if self.rules:
            inputs["processor"] = LogitsProcessor(self.rules, prompts, n_new, end_ids)

        search: Any = generator_of(self.model)
        if options.beams is None:
            inputs["sampling"] = self.sampling
            inputs["row_ids"] = [row.sample_id for row in rows]
        else:
            search = partial(beam_search, self.model)
            inputs["beams"] = options.beams
            inputs["length_penalty"] = options.length_penalty

        for row in rows:
            yield row, (row.prompt if self.echoes else "")

        for step in search(prompts, **inputs):
            for row, i, logprob in zip(rows, step.ids, step.logprobs, strict=True):
                yield row, row.stream.push(i, logprob)
            if all(row.stream.finish_reason for row in rows):
                break

        for row in rows:
            yield row, row.stream.finish("length") + "\n"

    def explain(self, row: Row) -> None:
        """Save a page of what the model predicts and attends to."""
        from model.explain import write_page

        inputs = {"tokens": row.prompt_ids}
        if self.model.kind == "encoder_decoder":
            target = [self.tokenizer.start, *row.stream.ids]
            inputs = {"source": row.prompt_ids, "tokens": target[: self.model.context_length]}

        write_page(self.options.explain, self.model, self.tokenizer, inputs, row.stream.ids)


def show(text: str) -> None:
    """Print the text unchanged, except that control characters are escaped on a terminal."""
    if sys.stdout.isatty():
        text = escape(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def as_json(row: Row) -> str:
    fields = {"prompt": row.prompt}
    if isinstance(row.prompt, list):
        fields = {"messages": with_answer(row)}
    if row.probabilities is not None:
        fields |= {"label": next(iter(row.probabilities)), "probabilities": row.probabilities}
    else:
        for name in ("text", "ids", "logprobs", "finish_reason"):
            fields[name] = getattr(row.stream, name)
    return json.dumps(fields, ensure_ascii=sys.stdout.isatty()) + "\n"


def main(args: list[str] | None = None) -> None:
    options = parse_options(args)

    if options.serve is not None:
        from model.generate.serve import serve

        serve(Sampler(options))
    elif options.interactive or (options.chat and not options.json):
        interact(Sampler(options))
    else:
        # first, so that an error saves loading the model
        texts = options.prompt or options.source or read_texts(options)
        Sampler(options).answer(texts)


if __name__ == "__main__":
    sys.exit(run_command(main))
