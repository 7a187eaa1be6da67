"""Options: the command line of sample.py."""

import re
import sys
from argparse import Namespace
from difflib import get_close_matches
from typing import Any

from configs.cli import ArgumentParser, expand_user
from configs.registry import Count, check_value, from_dict
from model.generate.prompt import MASK
from model.generate.sampling import Sampling

OPTIONS = """
--prompt TEXT               text to continue, or a source; --prompt=TEXT if it begins with a dash
--source TEXT               text whose target to generate
--file PATH                 file with one prompt per line
--interactive               read one prompt after another
--slide                     truncate a prompt longer than the context on the left
--run PATH                  run folder (default: the newest with a checkpoint)
--checkpoint NAME           latest (default), best, or a step
--device NAME               auto (default), cpu, cuda or mps
--precision NAME            auto (default), fp32, bf16 or fp16
--max-new-tokens N          maximum length in tokens (default: 200)
--stop TEXT                 stop before this string
--temperature X             0 is greedy (default: 0.8; of an encoder-decoder or on pairs: 0)
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
--attention-map PATH        save all attention weights as .png, .pdf or .svg
--debug                     show the traceback of an error
"""
INPUTS = ("--prompt", "--source", "--file", "--interactive")
SETTINGS: dict[str, dict[str, Any]] = {
    "": {"action": "store_true"},
    "TEXT": {"action": "append", "metavar": "TEXT"},
    "NAME": {"default": "auto", "metavar": "NAME"},
    "PATH": {"type": expand_user, "metavar": "PATH"},
    "N": {"type": int, "metavar": "N"},
    "X": {"type": float, "metavar": "X"},
}


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python sample.py",
        usage="python sample.py [options]     without an input option, stdin is one prompt",
        description="Sample from a run: a decoder continues a prompt, an encoder-decoder generates "
        f"the target of a source, an encoder fills in {MASK}.",
        allow_abbrev=False,
    )
    inputs = parser.add_mutually_exclusive_group()
    for flag, metavar, text in re.findall(r"(--\S+) ([A-Z]*) +(.+)", OPTIONS):
        group = inputs if flag in INPUTS else parser
        group.add_argument(flag, help=text, **SETTINGS[metavar])
    parser.set_defaults(checkpoint="latest", max_new_tokens=200, stop=[], n=1, length_penalty=1.0)
    return parser


def parse_options(args: list[str] | None = None) -> Namespace:
    options, unknown = make_parser().parse_known_args(args)
    if unknown:
        name = unknown[0].strip("-").partition("=")[0].replace("-", "_")
        near = get_close_matches(name, vars(options), 1)
        hint = "a text is given by --prompt; see --help"
        if near:
            hint = f"did you mean --{near[0]}?".replace("_", "-")
        raise ValueError(f"unknown argument {unknown[0]!r}; {hint}")

    if "" in options.stop:
        raise ValueError("--stop is empty")
    check_value("--n", options.n, Count)
    return options


def choose_sampling(options: Namespace, temperature: float) -> Sampling:
    """The options of sampling, with this default temperature."""
    values = {"temperature": temperature}
    for name in vars(Sampling()):
        if vars(options)[name] is not None:
            values[name] = vars(options)[name]

    sampling = from_dict(Sampling, values)
    is_greedy = sampling.temperature == 0
    if is_greedy and (options.n > 1 or values.keys() & {"top_k", "top_p", "min_p"}):
        raise ValueError(
            "greedy decoding (temperature 0) has one result: "
            "set --temperature, or remove --n, --top-k, --top-p and --min-p"
        )

    if options.beams is not None and not is_greedy and options.temperature is not None:
        raise ValueError("--beams does not sample: remove --temperature")
    return sampling


def read_texts(options: Namespace) -> list[str]:
    """The prompts of the command line, the lines of --file, or stdin as one prompt."""
    file = options.file
    if options.prompt or options.source:
        return options.prompt or options.source
    if not file and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --file or --interactive, or text on stdin")

    try:
        data = file.read_bytes() if file else sys.stdin.buffer.read()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ValueError(f"{file or 'stdin'} cannot be read ({reason})") from None
    text = text.replace("\r\n", "\n").removesuffix("\n")
    return text.split("\n") if file else [text]
