"""Sample from a run: options -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from configs.cli import escape, print, run_command
from configs.parts import load_parts
from model.checkpoint import LoadedRun, load_run, newest_run
from model.generate.options import choose_generation, parse_options, read_texts
from model.generate.sampler import Generation, Row, Sampler
from model.hub.files import is_hf_folder
from model.inference import prepare
from model.precision import choose_device, choose_precision

MAX_BATCH = 64


def main(args: list[str] | None = None) -> None:
    options = parse_options(args)
    is_interactive = options.interactive or (options.chat and not options.json)
    texts = [] if is_interactive else read_texts(options)  # before a model is loaded in vain
    sampler = make_sampler(load(options), options)
    how = choose_generation(options, sampler)

    if options.interactive:
        interact(lambda text: answer(sampler, options, how, [text]))
    elif is_interactive:
        interact(start_chat(sampler, options, how))
    else:
        answer(sampler, options, how, texts)


def load(options: Namespace) -> LoadedRun:
    """The run, ready for inference on its device."""
    load_parts(options.parts)
    place = options.run or newest_run()
    if options.run and is_hf_folder(str(place)):
        from model.generate.imported import load_folder

        run = load_folder(str(place), options.checkpoint)
    else:
        run = load_run(place, options.checkpoint or "latest")

    precision = choose_precision(choose_device(options.device), options.precision)
    prepare(run.model.to(precision.device, precision.dtype))
    dtype = str(precision.dtype).removeprefix("torch.")
    where = f"{dtype} on {precision.device}, {precision.reason}"
    print(f"{place}, step {run.step}: {where}", file=sys.stderr)
    return run


def make_sampler(run: LoadedRun, options: Namespace) -> Sampler:
    if options.chat:
        from model.generate.chat import ChatSampler

        return ChatSampler(run)
    return Sampler(run)


def answer(sampler: Sampler, options: Namespace, how: Generation, prompts: list[Any]) -> None:
    rows = []
    for prompt in prompts:
        for sample_id in range(options.n or 1):
            row = sampler.row(
                prompt,
                sample_id,
                stop=options.stop,
                special=options.special,
                slide=options.slide,
            )
            if not row.ids and options.embed:
                before, after = sampler.tokenizer.template
                row.ids = before + after
            if not row.ids and (options.embed or options.attention_map):
                raise ValueError("the text is empty")
            rows.append(row)
    write(sampler, options, how, rows)


def write(sampler: Sampler, options: Namespace, how: Generation, rows: list[Row]) -> None:
    """Print each text with its continuation, its target, or the text with its masks filled."""
    streaming = len(rows) == 1 and not options.json and not options.no_stream
    size = 1 if options.beams else MAX_BATCH
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        todo = [row for row in batch if row.ids]
        for row, piece in complete(sampler, options, how, todo) if todo else ():
            row.shown += piece
            if streaming:
                show(piece)

        for row in batch:
            if options.json:
                show(as_json(row, options))
            elif not streaming:
                rule = "---\n" if sampler.continues and row is not rows[0] else ""
                show(rule + (row.shown or "\n"))

    if options.attention_map:
        from model.attention_maps import save_maps

        new = [sampler.tokenizer.start, *rows[0].stream.ids]
        save_maps(sampler.model, sampler.tokenizer, rows[0].ids, new, options.attention_map)


def complete(
    sampler: Sampler, options: Namespace, how: Generation, rows: list[Row]
) -> Iterator[tuple[Row, str]]:
    """What is printed of each row, as it grows."""
    if options.embed:
        from model.generate.encoder import vectors

        yield from vectors(sampler, rows, options.embed)
    elif sampler.kind == "encoder":
        from model.generate.encoder import fill

        yield from fill(sampler, rows)
    else:
        for row in rows:
            yield row, (row.prompt if sampler.continues else "")
        yield from sampler.generate(rows, how)
        for row in rows:
            yield row, "\n"


def show(text: str) -> None:
    """Print exactly this text, but for control characters on a terminal."""
    if sys.stdout.isatty():
        text = escape(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def as_json(row: Row, options: Namespace) -> str:
    fields = {"prompt": row.prompt}
    if options.chat:
        from model.generate.chat import answered

        fields = {"messages": answered(row)}
    for name in ("text", "ids", "logprobs", "finish_reason"):
        fields[name] = getattr(row.stream, name)
    return json.dumps(fields, ensure_ascii=sys.stdout.isatty()) + "\n"


def start_chat(sampler: Sampler, options: Namespace, how: Generation) -> Callable[[str], None]:
    """A function that answers what is said next."""
    from model.generate.chat import Conversation

    length = how.max_new_tokens or sampler.default_length
    conversation = Conversation(sampler, options.system, length)

    def reply(text: str) -> None:
        if not text.strip():
            return
        row = conversation.ask(text, options.stop)
        try:
            write(sampler, options, how, [row])
        except KeyboardInterrupt:  # what was said until then is remembered
            print()
        conversation.remember(row)

    return reply


def interact(respond: Callable[[str], None]) -> None:
    """One prompt after another; an error or an interrupt ends only its own."""
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401  line editing and history
    with suppress(EOFError):
        while True:
            try:
                respond(input("> " if sys.stdin.isatty() else ""))
            except ValueError as error:
                print(f"error: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                print()


if __name__ == "__main__":
    sys.exit(run_command(main))
