"""Options: the command line of sample.py."""

import re
import sys
from argparse import Namespace
from typing import Any

from configs.cli import ArgumentParser, expand_user
from configs.registry import Count, check_value, construct
from data.chat import to_messages
from data.sources.tables import parse_json, read_turns
from model.generate.encoder import Pooling
from model.generate.marks import MASK
from model.generate.sampling import Sampling

INPUTS = """
--prompt TEXT               text to continue, or a source; --prompt=TEXT if it begins with a dash
--source TEXT               text whose target to generate
--file PATH                 file with one prompt per line
--interactive               read one prompt after another
--chat                      hold a conversation; with --json, each line of stdin has its messages
--serve N                   answer requests of OpenAI's API, and show a page, at http://localhost:N
"""
OPTIONS = """
--host NAME                 for --serve: localhost (default), or 0.0.0.0 to let other machines in
--system TEXT               system message of --chat
--special                   parse special tokens such as <|im_start|> in the prompt, and add none
--slide                     truncate a prompt longer than the context on the left
--run PATH                  run folder (default: the newest with a checkpoint)
--checkpoint NAME           latest (default), best, or a step
--parts PATH                Python file of the parts that it was trained with
--device NAME               auto (default), cpu, cuda or mps
--precision NAME            auto (default), fp32, bf16 or fp16
--max-new-tokens N          maximum length in tokens (default: 200)
--stop TEXT                 stop before this string
--temperature X             0 is greedy (default: 0.8; of an encoder-decoder, or after training on pairs: 0)
--top-k N                   sample from the N most likely tokens
--top-p X                   from the smallest set with total probability X
--min-p X                   from tokens at least X times as likely as the top one
--repetition-penalty X      above 1, penalize tokens already in the text
--seed N                    random seed (default: 0)
--n N                       number of samples per prompt (default: 1)
--beams N                   beam search with N beams, for an encoder-decoder
--length-penalty X          for --beams; higher favors longer texts (default: 1)
--no-stream                 print a text only when it is complete
--json                      JSON lines: prompt, text, ids, logprobs, finish_reason
--score                     print how surprising each token of a text is; of a decoder
--embed NAME                print a vector (mean, first, or auto: as an imported model says) of each text or line of stdin; of an encoder
--explain PATH              save an .html page of the first sample: predictions, attention
--debug                     show the traceback of an error
"""
DEFAULTS = {
    "checkpoint": "latest",
    "device": "auto",
    "precision": "auto",
    "max_new_tokens": 200,
    "stop": [],
    "n": 1,
    "length_penalty": 1.0,
    "system": [],
    "host": "localhost",
}
# names of options
RANDOM = "top_k top_p min_p n seed"
SAMPLING = f"{RANDOM} temperature repetition_penalty"
GENERATION = f"{SAMPLING} max_new_tokens stop beams length_penalty"
SETTINGS: dict[str, dict] = {
    "": {"action": "store_true", "default": None},
    "TEXT": {"action": "append", "metavar": "TEXT"},
    "NAME": {"metavar": "NAME"},
    "PATH": {"type": expand_user, "metavar": "PATH"},
    "N": {"type": int, "metavar": "N"},
    "X": {"type": float, "metavar": "X"},
}


def add_options(parser: Any, table: str) -> None:
    """Add an option for each line of a table: its flag, the name of its value, and its help."""
    for flag, metavar, text in re.findall(r"(--\S+) ([A-Z]*) +(.+)", table):
        parser.add_argument(flag, help=text, **SETTINGS[metavar])


def parse_options(args: list[str] | None = None) -> Namespace:
    """The options; `given` are those, besides a prompt, that differ from their defaults."""
    parser = ArgumentParser(
        prog="python sample.py",
        usage="python sample.py [options] [prompt ...]    (default: stdin is one prompt)",
        description="Sample from a run: a decoder continues a prompt, an encoder-decoder generates "
        f"the target of a source, an encoder fills in {MASK}, a classifier names the class of a text.",
        allow_abbrev=False,
    )
    add_options(parser.add_mutually_exclusive_group(), INPUTS)
    add_options(parser, OPTIONS)
    parser.set_defaults(**DEFAULTS)

    options, rest = parser.parse_known_args(args)
    values = vars(options)

    options.given = {name for name in values if values[name] != DEFAULTS.get(name)}
    options.sampling = {name: values[name] for name in vars(Sampling()) if name in options.given}

    if rest:
        options.prompt = only_prompts(rest, options)
    options.given -= {"prompt"}

    if options.given:
        check_options(options)
    return options


def check_options(options: Namespace) -> None:
    """Refuse wrong values, and options that would be ignored, before a model is loaded. The numbers
    of --score, --embed and --explain are compared with others: they are in float32 by default."""
    check_value("--n", options.n, Count)
    check_value("--max-new-tokens", options.max_new_tokens, Count)
    construct("", Sampling, options.sampling)
    if "" in options.stop:
        raise ValueError("--stop cannot be empty")

    if page := options.explain:
        if page.suffix != ".html":
            raise ValueError("--explain must end in .html")
        if not page.parent.is_dir():
            raise ValueError(f"--explain is {page}; there is no folder {page.parent}")

    if options.chat:
        names = "slide special " + ("system" if options.json else "n")
        refuse(names, options, "--chat has a template, one answer and, with --json, all messages")
    else:
        refuse("system", options, "it is for --chat")

    if options.serve is None:
        refuse("host", options, "it is for --serve")
    else:
        names = f"{GENERATION} slide special no_stream json score embed explain"
        refuse(names, options, "a request to --serve has its own settings")

    if options.score:
        names = f"{GENERATION} chat embed no_stream explain"
        refuse(names, options, "--score generates nothing")

    if options.embed is not None:
        check_value("--embed", options.embed, Pooling)
        names = f"{GENERATION} explain json no_stream"
        refuse(names, options, "--embed prints a vector for each text, as JSON")

    if options.beams is None:
        refuse("length_penalty", options, "it is for --beams")
    else:
        refuse(SAMPLING, options, "beam search does not sample")

    if (options.embed or options.explain or options.score) and options.precision == "auto":
        options.precision = "fp32"


def only_prompts(rest: list[str], options: Namespace) -> list[str]:
    """Take arguments without a flag as prompts: python sample.py "def "."""
    for argument in rest:
        if argument.startswith("-"):
            from configs.explain import did_you_mean

            flag = argument.partition("=")[0].replace("_", "-")
            hint = did_you_mean(flag, re.findall(r"(?m)^--\S+", INPUTS + OPTIONS))
            raise ValueError(f"unknown option {argument}{hint}; see --help")

    refuse("prompt source file interactive chat serve", options, f"{rest[0]!r} is the prompt")
    return rest


def choose_sampling(options: Namespace, kind: str, continues: bool) -> Sampling:
    """The sampling options for a model of this kind; `continues`: whether it continues a text."""
    usual = {"temperature": 0.8 if continues else 0.0}
    sampling = construct("", Sampling, usual | options.sampling)

    if options.given:
        check_kind(options, kind, continues)
        if sampling.temperature == 0:
            refuse(RANDOM, options, "greedy decoding has one result; set --temperature above 0")
    return sampling


def check_kind(options: Namespace, kind: str, continues: bool) -> None:
    """Refuse what a model of this kind cannot do."""
    if options.embed and kind != "encoder":
        raise ValueError(f"--embed needs an encoder; model.kind is {kind}")

    if kind != "encoder_decoder":
        refuse("beams", options, f"beam search needs an encoder_decoder; model.kind is {kind}")

    if kind == "encoder":
        refuse(GENERATION, options, f"an encoder fills in {MASK}")

    if kind == "classifier":
        refuse(
            f"{GENERATION} source slide chat explain serve", options, "this model is a classifier"
        )

    if continues:
        refuse("source", options, "this model continues a --prompt")


def refuse(names: str, options: Namespace, reason: str) -> None:
    """Refuse options that would be ignored."""
    for name in names.split():
        if name in options.given:
            raise ValueError(f"--{name.replace('_', '-')} has no effect: {reason}")


def read_texts(options: Namespace) -> list:
    """The lines of --file, or stdin as one prompt; with --embed, each line of stdin, with --chat,
    the messages in each."""
    file = options.file
    if not file and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --file or --interactive, or text on stdin")
    data = file.read_bytes() if file else sys.stdin.buffer.read()
    text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")

    if not (file or options.embed or options.chat):
        return [text]
    lines = text.split("\n")
    if not options.chat:
        return lines

    numbered = ((f"line {number}", line) for number, line in enumerate(lines, 1))
    return [to_messages(read_turns(place, parse_json(place, line))) for place, line in numbered]
