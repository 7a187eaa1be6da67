"""Options: the command line of sample.py."""

import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, get_type_hints

from configs.cli import ArgumentParser, expand_user
from configs.registry import Count, SettingError, check_value, signature
from model.generate.prompt import MASK
from model.generate.sampler import Generation, Sampler
from model.generate.sampling import Sampling

KINDS: dict[str, dict[str, Any]] = {
    "": {"action": "store_true", "default": None},
    "TEXT": {"metavar": "TEXT", "action": "append"},
    "NAME": {"metavar": "NAME"},
    "PATH": {"metavar": "PATH", "type": expand_user},
    "N": {"metavar": "N", "type": int},
    "X": {"metavar": "X", "type": float},
}
INPUTS = {
    "--prompt TEXT": "text to continue, or a source; --prompt=TEXT if it begins with a dash",
    "--source TEXT": "text whose target to generate",
    "--file PATH": "file with one prompt per line",
    "--interactive": "read one prompt after another",
    "--chat": "hold a conversation; with --json, each line of stdin has its messages",
}
OPTIONS = {
    "--system TEXT": "system message of --chat",
    "--special": "parse special tokens in the prompt, such as <|im_start|>, and add none",
    "--slide": "truncate a prompt longer than the context on the left",
    "--run PATH": "run, or Hugging Face folder (default: the newest run)",
    "--checkpoint NAME": "latest (default), best, or a step",
    "--parts PATH": "Python file of the parts that it was trained with",
    "--device NAME": "auto (default), cpu, cuda or mps",
    "--precision NAME": "auto (default), fp32, bf16 or fp16",
    "--max-new-tokens N": "maximum length in tokens (default: 200, or that of an import)",
    "--stop TEXT": "stop before this string",
    "--temperature X": "0 is greedy (default: 0.8; of an encoder-decoder or on pairs: 0)",
    "--top-k N": "sample from the N most likely tokens",
    "--top-p X": "from the smallest set with total probability X",
    "--min-p X": "from tokens at least X times as likely as the top one",
    "--repetition-penalty X": "above 1, penalize tokens already in the text",
    "--seed N": "random seed (default: 0)",
    "--n N": "number of samples per prompt (default: 1)",
    "--beams N": "beam search with N beams, for an encoder-decoder",
    "--length-penalty X": "for --beams; higher favors longer texts (default: 1)",
    "--no-stream": "print a text only when it is complete",
    "--json": "JSON lines: prompt, text, ids, logprobs, finish_reason",
    "--embed NAME": "mean or first: a vector for each text or line of stdin, by an encoder",
    "--attention-map PATH": "save all attention weights as .png, .pdf or .svg",
    "--debug": "show the traceback of an error",
}
FILTERS = ("top_k", "top_p", "min_p", "n")
SAMPLING = (*signature(Sampling), "n")
GENERATION = (*signature(Generation), "n", "stop")


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        usage="python sample.py [options]     without an input option, stdin is one prompt",
        description="Sample from a run: a decoder continues a prompt, an encoder-decoder generates "
        f"the target of a source, an encoder fills in {MASK}.",
        allow_abbrev=False,
    )
    group = parser.add_mutually_exclusive_group()
    for name, text in (INPUTS | OPTIONS).items():
        flag, _, kind = name.partition(" ")
        among = group if name in INPUTS else parser
        among.add_argument(flag, help=text, **KINDS[kind])
    parser.set_defaults(device="auto", precision="auto")
    return parser


def parse_options(args: list[str] | None = None) -> Namespace:
    """The options, checked as far as they can be without the run."""
    options, unknown = make_parser().parse_known_args(args)
    if unknown:
        known = [name.split()[0] for name in INPUTS | OPTIONS]
        flag = unknown[0] if unknown[0].startswith("-") else f"--prompt={unknown[0]!r}"
        raise SettingError(f"unknown argument {unknown[0]!r}; see --help", flag, known)
    kinds = get_type_hints(Generation, include_extras=True)
    kinds |= {"n": Count, "embed": Literal["mean", "first"]}
    for name, value in given(options, kinds).items():
        check_value(flag_of(name), value, kinds[name])
    if "" in (options.stop or []):
        raise ValueError("--stop cannot be empty")

    if options.chat:
        names = ("slide", "special", "system" if options.json else "n")
        refuse(names, options, "--chat has a template and, with --json, all messages")
    else:
        refuse(("system",), options, "it is for --chat")
    if options.embed:
        others = (*GENERATION, "attention_map", "json")
        refuse(others, options, "--embed prints a vector for each text, as JSON")
        if options.precision == "auto":
            options.precision = "fp32"  # vectors are compared with those of other programs
    if options.beams:
        refuse(SAMPLING, options, "beam search does not sample")
    else:
        refuse(("length_penalty",), options, "it is for --beams")
    return options


def given(options: Namespace, names: Iterable[str]) -> dict[str, Any]:
    values = {name: vars(options)[name] for name in names}
    return {name: value for name, value in values.items() if value is not None}


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse(names: Iterable[str], options: Namespace, reason: str) -> None:
    """An option that would be ignored is an error."""
    for name in given(options, names):
        raise ValueError(f"{flag_of(name)} has no effect: {reason}")


def choose_generation(options: Namespace, sampler: Sampler) -> Generation:
    """How this model is to generate; options that it cannot obey are refused."""
    kind = sampler.kind
    if options.embed and kind != "encoder":
        raise ValueError(f"--embed needs an encoder; model.kind is {kind}")
    if options.beams and sampler.model.kind != "encoder_decoder":
        raise ValueError(f"--beams needs an encoder_decoder; this model is a {kind}")
    if kind == "encoder":
        refuse(GENERATION, options, f"an encoder fills in {MASK}")
    if sampler.continues:
        refuse(("source",), options, "this model continues a --prompt")

    how = replace(sampler.usual, **given(options, signature(Generation)))
    if how.temperature == 0:
        refuse(FILTERS, options, "greedy decoding (temperature 0) has one result")
    return how


def read_texts(options: Namespace) -> list[str]:
    """The prompts of the command line, the lines of --file, or stdin as one prompt, but each of
    its lines for --embed and --chat. None if they are read one by one."""
    if options.prompt or options.source:
        return options.prompt or options.source
    if options.interactive or (options.chat and not options.json):
        return []
    if not options.file and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --file or --interactive, or text on stdin")

    data = options.file.read_bytes() if options.file else sys.stdin.buffer.read()
    text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    if options.file or options.embed or options.chat:
        return text.split("\n")
    return [text]
