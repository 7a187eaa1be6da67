"""Options: the command line of sample.py."""

import sys
from argparse import Namespace
from dataclasses import fields, replace
from typing import Any, Literal

from configs.cli import ArgumentParser, expand_user
from configs.registry import Count, Natural, NonNegative, Positive, check_value
from model.generate.prompt import MASK
from model.generate.sampler import Generation, Sampler
from model.generate.sampling import Probability, Sampling

VALUES: dict[str, Any] = {
    "temperature": NonNegative,
    "top_k": Count,
    "top_p": Probability,
    "min_p": Probability,
    "repetition_penalty": Positive,
    "seed": Natural,
    "n": Count,
    "max_new_tokens": Count,
    "beams": Count,
    "length_penalty": float,
    "embed": Literal["mean", "first"],
}
FILTERS = ("top_k", "top_p", "min_p", "n")
SAMPLING = (*FILTERS, "temperature", "repetition_penalty", "seed")
GENERATION = (*SAMPLING, "max_new_tokens", "stop", "beams", "length_penalty")
IMAGES = (".png", ".pdf", ".svg")
TEXT: dict[str, Any] = {"metavar": "TEXT", "action": "append", "default": []}
NAME: dict[str, Any] = {"metavar": "NAME"}
PATH: dict[str, Any] = {"metavar": "PATH", "type": expand_user}
N: dict[str, Any] = {"metavar": "N", "type": int}
X: dict[str, Any] = {"metavar": "X", "type": float}
FLAG: dict[str, Any] = {"action": "store_true"}


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python sample.py",
        usage="python sample.py [options]     without an input option, stdin is one prompt",
        description="Sample from a run: a decoder continues a prompt, an encoder-decoder generates "
        f"the target of a source, an encoder fills in {MASK}.",
        allow_abbrev=False,
    )
    add_inputs(parser.add_mutually_exclusive_group())
    add_generation(parser)
    add = parser.add_argument
    add("--run", **PATH, help="run or Hugging Face folder (default: the newest run)")
    add("--checkpoint", **NAME, help="latest (default), best, or a step")
    add("--parts", **PATH, help="Python file of the parts that it was trained with")
    add("--device", **NAME, default="auto", help="auto (default), cpu, cuda or mps")
    add("--precision", **NAME, default="auto", help="auto (default), fp32, bf16 or fp16")
    add("--no-stream", **FLAG, help="print a text only when it is complete")
    add("--json", **FLAG, help="JSON lines: prompt, text, ids, logprobs, finish_reason")
    vectors = "mean or first: a vector for each text or line of stdin, by an encoder"
    add("--embed", **NAME, nargs="?", const="", help=vectors)
    add("--attention-map", **PATH, help="save all attention weights as .png, .pdf or .svg")
    add("--debug", **FLAG, help="show the traceback of an error")
    return parser


def add_inputs(group: Any) -> None:
    add = group.add_argument
    text = "text to continue, or a source; --prompt=TEXT if it begins with a dash"
    add("--prompt", **TEXT, help=text)
    add("--source", **TEXT, help="text whose target to generate")
    add("--file", **PATH, help="file with one prompt per line")
    add("--interactive", **FLAG, help="read one prompt after another")
    chat = "hold a conversation; with --json, each line of stdin has its messages"
    add("--chat", **FLAG, help=chat)


def add_generation(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--system", **TEXT, help="system message of --chat")
    special = "special tokens in the prompt, such as <|im_start|>, are parsed; none are added"
    add("--special", **FLAG, help=special)
    add("--slide", **FLAG, help="truncate a prompt longer than the context on the left")
    length = "maximum length in tokens (default: that of an imported model, or 200)"
    add("--max-new-tokens", **N, help=length)
    add("--stop", **TEXT, help="stop before this string")
    greedy = "0 is greedy (default: 0.8; of an encoder-decoder or on pairs: 0)"
    add("--temperature", **X, help=greedy)
    add("--top-k", **N, help="sample from the N most likely tokens")
    add("--top-p", **X, help="from the smallest set with total probability X")
    add("--min-p", **X, help="from tokens at least X times as likely as the top one")
    add("--repetition-penalty", **X, help="above 1, penalize tokens already in the text")
    add("--seed", **N, help="random seed (default: 0)")
    add("--n", **N, help="number of samples per prompt (default: 1)")
    add("--beams", **N, help="beam search with N beams, for an encoder-decoder")
    longer = "for --beams; higher favors longer texts (default: 1)"
    add("--length-penalty", **X, help=longer)


def parse_options(args: list[str] | None = None) -> Namespace:
    """The options, as far as they can be checked without the run."""
    parser = make_parser()
    options, unknown = parser.parse_known_args(args)
    if unknown:
        from model.generate.unknown import explain_unknown

        raise ValueError(explain_unknown(unknown[0], parser))
    for name, annotation in VALUES.items():
        value = vars(options)[name]
        if value is not None:
            check_value(flag_of(name), value, annotation)
    if "" in options.stop:
        raise ValueError("--stop cannot be empty")
    if options.attention_map and options.attention_map.suffix not in IMAGES:
        raise ValueError(f"--attention-map ends in none of {', '.join(IMAGES)}")

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


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse(names: tuple[str, ...], options: Namespace, reason: str) -> None:
    """An option that would be ignored is an error."""
    for name in names:
        if vars(options)[name] not in (None, False, []):
            raise ValueError(f"{flag_of(name)} has no effect: {reason}")


def choose_generation(options: Namespace, sampler: Sampler) -> Generation:
    """How this model is to generate; options that it cannot obey are refused."""
    kind = sampler.kind
    if options.embed and kind != "encoder":
        raise ValueError(f"--embed needs an encoder; model.kind is {kind}")
    if options.beams and (kind != "encoder_decoder" or sampler.has_own_search):
        raise ValueError(f"--beams needs an encoder_decoder; this model is a {kind}")
    if kind == "encoder":
        refuse(GENERATION, options, f"an encoder fills in {MASK}")
    if sampler.continues:
        refuse(("source",), options, "this model continues a --prompt")

    given = {}
    for field in fields(Sampling):
        if vars(options)[field.name] is not None:
            given[field.name] = vars(options)[field.name]
    sampling = replace(sampler.default_sampling, **given)
    if sampling.temperature == 0:
        refuse(FILTERS, options, "greedy decoding (temperature 0) has one result")
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    return Generation(sampling, options.max_new_tokens, options.beams, penalty)


def read_texts(options: Namespace) -> list[Any]:
    """The prompts of the command line, the lines of --file, or stdin as one prompt, but each of
    its lines for --embed; messages in each for --chat."""
    if options.prompt or options.source:
        return options.prompt or options.source
    file = options.file
    if not file and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --file or --interactive, or text on stdin")

    data = file.read_bytes() if file else sys.stdin.buffer.read()
    text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    if not (file or options.embed or options.chat):
        return [text]
    lines = text.split("\n")
    if options.chat:
        from model.generate.chat import read_messages

        return [read_messages(number, line) for number, line in enumerate(lines, 1)]
    return lines
