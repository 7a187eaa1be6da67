"""Sample from a run: options -> run -> prompt -> ids -> text.

python sample.py --prompt "def "
"""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from configs.cli import escape, print, run_command
from configs.parts import load_parts
from model.checkpoint import load_run, newest_run
from model.generate.options import choose_generation, parse_options, read_texts, refuse
from model.generate.sampler import Generation, Row, Sampler
from model.generate.stream import TextStream
from model.hub.files import is_hf_folder
from model.inference import prepare
from model.precision import choose_device, choose_precision

MAX_BATCH = 64


def main(args: list[str] | None = None) -> None:
    options = parse_options(args)
    texts = read_texts(options)  # before a model is loaded in vain
    sampler = load(options)
    how = choose_generation(options, sampler)
    write = partial(write_rows, sampler, options, how)

    if options.chat:
        from model.generate.chat import Chat

        chat = Chat(sampler, options.stop or [], options.system or [])
        if options.json:
            write(chat.read_rows(texts, options.n or 1))
        else:
            interact(lambda text: chat.reply(text, write, how.max_new_tokens))
    elif options.interactive:
        interact(lambda text: write(make_rows(sampler, options, [text])))
    else:
        write(make_rows(sampler, options, texts))


def load(options: Namespace) -> Sampler:
    """A run that is ready for inference on its device."""
    load_parts(options.parts)
    place = options.run or newest_run()
    if is_hf_folder(str(place)):
        from model.generate.imported import load_folder

        refuse(["checkpoint"], options, f"{place} is a Hugging Face folder")
        run = load_folder(str(place))
    else:
        run = load_run(place, options.checkpoint or "latest")

    precision = choose_precision(choose_device(options.device), options.precision)
    prepare(run.model.to(precision.device, precision.dtype))
    dtype = str(precision.dtype).removeprefix("torch.")
    where = f"{dtype} on {precision.device}, {precision.reason}"
    print(f"{place}, step {run.step}: {where}", file=sys.stderr)
    if not run.tokenizer.text:
        return Sampler(run)
    from model.generate.imported import ImportedSampler

    return ImportedSampler(run)


def make_rows(sampler: Sampler, options: Namespace, texts: list[str]) -> list[Row]:
    rows: list[Row] = []
    for text in texts:
        ids = sampler.encode(text, options.slide, options.special)
        if options.embed and not ids:
            before, after = sampler.tokenizer.template
            ids = before + after
        if not ids and (options.embed or options.attention_map):
            raise ValueError("the text is empty")
        for sample_id in range(options.n or 1):
            known = ids if sampler.continues else []
            stream = TextStream(sampler.tokenizer, options.stop or [], known)
            row = Row(text, ids, stream, sample_id)
            if sampler.continues:
                row.shown = f"---\n{text}" if rows else text
            rows.append(row)
    return rows


def write_rows(sampler: Sampler, options: Namespace, how: Generation, rows: list[Row]) -> None:
    """Print each text with its continuation, its target, or the text with its masks filled."""
    streaming = len(rows) == 1 and not options.json and not options.no_stream
    size = 1 if options.beams else MAX_BATCH
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        if streaming:
            show(rows[0].shown)
        for row, piece in complete(sampler, options, how, batch):
            row.shown += piece
            if streaming:
                show(piece)

        for row in batch:
            text = "" if streaming else row.shown
            if options.json:
                text = json.dumps(row.fields(), ensure_ascii=sys.stdout.isatty())
            show(text + "\n")

    if options.attention_map:
        from model.attention_maps import save_maps

        target = [sampler.tokenizer.start, *rows[0].stream.ids]
        save_maps(sampler.model, sampler.tokenizer, rows[0].ids, target, options.attention_map)


def complete(
    sampler: Sampler, options: Namespace, how: Generation, rows: list[Row]
) -> Iterator[tuple[Row, str]]:
    """The text that is added to each row, as it grows; none to one without ids."""
    rows = [row for row in rows if row.ids]
    if not rows:
        return
    if sampler.kind != "encoder":
        yield from sampler.generate(rows, how)
        return
    from model.generate.encoder import fill, vectors

    yield from vectors(sampler, rows, options.embed) if options.embed else fill(sampler, rows)


def show(text: str) -> None:
    """Print exactly this text, but for control characters on a terminal."""
    if sys.stdout.isatty():
        text = escape(text)
    sys.stdout.write(text)
    sys.stdout.flush()


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
