"""Asking: what a command line wants of a trained model. What the model cannot do is refused in a sentence."""

import argparse
import re
import sys
from pathlib import Path

from model.generate.prompt import MASK

TEXTS = ("--prompt", "--source", "--stop")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        if "expected one argument" in message:
            message += "; a text that looks like an option is joined to its own, as in --prompt=--text"
        raise ValueError(message)


class AppendText(argparse.Action):
    """One more text; of `--` alone argparse has left nothing."""

    def __call__(self, parser, options, text, name=None):
        texts = getattr(options, self.dest) or []
        setattr(options, self.dest, [*texts, "--" if text == [] else text])


def join_dashed_values(words):
    """A text may begin with a dash, which argparse would take for an option."""
    found = []
    for word in words:
        dashed = word.startswith("-") and not re.match(r"--\w", word)
        if dashed and found and found[-1] in TEXTS:
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def make_parser():
    parser = Parser(
        prog="python sample.py",
        description="Text from a checkpoint: a decoder continues a prompt, an encoder-decoder answers a "
        f"source, an encoder fills in {MASK}.",
        allow_abbrev=False,
    )

    def option(place, name, kind, words):
        place.add_argument(name, type=kind, metavar={str: "TEXT", int: "N", float: "X"}[kind], help=words)

    def texts(place, name, words):
        place.add_argument(name, action=AppendText, metavar="TEXT", help=f"{words}; may be repeated")

    def flag(place, name, words):
        place.add_argument(name, action="store_true", help=words)

    given = parser.add_mutually_exclusive_group()
    texts(given, "--prompt", "the text to go on from; for an encoder-decoder the same as --source")
    texts(given, "--source", "the text that an encoder-decoder answers")
    option(
        given, "--file", str, "a file with a prompt on each line; without any of these, stdin is one prompt"
    )
    flag(given, "--interactive", "ask for one prompt after another")
    option(parser, "--run", str, "the folder of a run (default: the newest that has a checkpoint)")
    option(parser, "--checkpoint", str, "latest (default), best, or the number of a step")
    option(parser, "--device", str, "auto (default), cpu, cuda or mps")
    option(parser, "--precision", str, "auto (default), fp32, bf16 or fp16")
    option(parser, "--max-new-tokens", int, "the most that is written (default: 200)")
    option(
        parser, "--temperature", float, "0 takes the likeliest word; default: 0 for answers, 0.8 for the rest"
    )
    option(parser, "--top-k", int, "draw from so many of the likeliest words")
    option(parser, "--top-p", float, "draw from the likeliest words that have so much of the probability")
    option(parser, "--min-p", float, "draw from words at least so likely, where the likeliest counts 1")
    option(parser, "--repetition-penalty", float, "above 1, words that are there already become less likely")
    option(parser, "--seed", int, "another seed, other texts (default: 0)")
    option(parser, "--n", int, "so many texts for each prompt (default: 1)")
    option(
        parser, "--beams", int, "search for an answer that is likely as a whole, so many beginnings at once"
    )
    option(parser, "--length-penalty", float, "of --beams: the higher, the longer the answers (default: 1)")
    texts(parser, "--stop", "end before this text")
    flag(parser, "--slide", "of a prompt beyond the context keep the newest part")
    flag(parser, "--no-stream", "show a text once it is whole")
    flag(parser, "--json", "an object a line: prompt, text, ids, logprobs, stop")
    option(parser, "--attention-map", str, "a picture of all attention weights, such as maps.png")
    flag(parser, "--debug", "show where in the code an error came from")
    parser.set_defaults(checkpoint="latest", device="auto", precision="auto")
    return parser


SAMPLING_OPTIONS = ("top_k", "top_p", "min_p", "seed", "n")
GENERATION_OPTIONS = (
    "max_new_tokens",
    "temperature",
    "repetition_penalty",
    "beams",
    "length_penalty",
    "stop",
    *SAMPLING_OPTIONS,
)


def reject(options, names, why):
    for name in names:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def check_options(options, kind):
    """Nothing is silently ignored."""
    if kind == "encoder":
        reject(
            options,
            ["source"],
            f"is answered by an encoder-decoder; this run is an encoder: --prompt 'a {MASK}'",
        )
        reject(
            options,
            GENERATION_OPTIONS,
            f"is for models that write; this run is an encoder, which fills in {MASK}",
        )
    if options.no_stream and (options.json or kind == "encoder"):
        raise ValueError("--no-stream is for texts that stream: with --json, or of an encoder, nothing does")
    if kind == "decoder":
        reject(options, ["source"], "is answered by an encoder-decoder; this run is a decoder: give --prompt")
        reject(
            options, ["beams"], "goes with an encoder-decoder; this run is a decoder: draw with --temperature"
        )
    if options.beams is None:
        reject(options, ["length_penalty"], "goes with --beams")
    else:
        odd = ["temperature", "repetition_penalty", *SAMPLING_OPTIONS]
        reject(options, odd, "does not go with --beams, which search and do not draw: give one of the two")
    if options.n is not None and not 1 <= options.n <= 1000:
        raise ValueError(f"--n is {options.n}; expected a whole number from 1 to 1000")
    if options.stop and "" in options.stop:
        raise ValueError("--stop is empty; expected the text to end before")
    if options.attention_map is not None:
        several = len(options.prompt or options.source or "1") > 1
        if options.interactive or options.file is not None or several or (options.n or 1) > 1:
            raise ValueError("--attention-map draws one text: give one --prompt or --source, and no --n")
        check_picture(Path(options.attention_map))


def check_picture(path):
    """Said before anything is computed."""
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--attention-map is {str(path)!r}; expected a name that ends in .png, .pdf or .svg")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"--attention-map is {str(path)!r}, where no file can be written: there is no such folder"
        )
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ValueError(f"--attention-map {path} cannot be written ({error.strerror})") from None
    if not there:
        path.unlink()


def check_stops(options, tokenizer):
    for stop in options.stop or ():
        try:
            tokenizer.encode(stop)
        except ValueError as error:
            raise ValueError(f"--stop {stop!r} is never written: {error}") from None


def check_sampled(options, temperature):
    if temperature == 0 and options.beams is None:
        reject(
            options,
            SAMPLING_OPTIONS,
            "is about draws, and temperature 0 takes the likeliest: give --temperature above 0",
        )


def read_texts(options):
    """The prompts that are given."""
    if options.prompt is not None or options.source is not None:
        return options.source if options.prompt is None else options.prompt
    if options.file is not None:
        try:
            text = decode_utf8(Path(options.file).read_bytes(), options.file)
        except OSError as error:
            raise ValueError(f"--file {options.file} cannot be read ({error.strerror})") from None
        if not (lines := [line for line in text.split("\n") if line.strip()]):
            raise ValueError(f"--file {options.file} has no prompt in it; each line is one")
        return lines
    if sys.stdin.isatty():
        raise ValueError("there is no prompt: give --prompt, --file or --interactive, or text on stdin")
    return [decode_utf8(sys.stdin.buffer.read(), "stdin").removesuffix("\n")]


def decode_utf8(data, where):
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{where} is not UTF-8: byte 0x{byte:02x} at offset {error.start}") from None
