"""Options: the command line of sample.py. An option that would have no effect is an error."""

import argparse
import re
import sys
from pathlib import Path
from typing import Annotated, get_args

from configs.registry import Bounds, Count, NonNegative, Positive, check_value
from model.generate.beams import Beams, LengthPenalty
from model.generate.decode import MaxNewTokens
from model.generate.prompt import MASK
from model.generate.sampling import Probability, Sampling, Seed

OPTIONS = {  # name: (type, help); those of type list may be repeated
    "--prompt": (list, "text to continue; for an encoder-decoder, its source"),
    "--source": (list, "source text of an encoder-decoder"),
    "--file": (Path, "file with one prompt per line"),
    "--interactive": (bool, "read one prompt after another"),
    "--slide": (bool, "truncate a prompt longer than the context on the left"),
    "--run": (Path, "run folder (default: the newest with a checkpoint)"),
    "--checkpoint": (str, "latest (default), best, or a step"),
    "--device": (str, "auto (default), cpu, cuda or mps"),
    "--precision": (str, "auto (default), fp32, bf16 or fp16"),
    "--max-new-tokens": (MaxNewTokens, "maximum length in tokens (default: 200)"),
    "--stop": (list, "stop before this string"),
    "--temperature": (NonNegative, "0 is greedy (default: 0.8; trained on pairs: 0)"),
    "--top-k": (Count, "sample from the N most likely tokens"),
    "--top-p": (Probability, "from the smallest set with total probability X"),
    "--min-p": (Probability, "from tokens at least X times as likely as the top one"),
    "--repetition-penalty": (Positive, "above 1, penalize tokens already in the text"),
    "--seed": (Seed, "random seed (default: 0)"),
    "--n": (Annotated[int, Bounds(1, 1000)], "number of samples per prompt (default: 1)"),
    "--beams": (Beams, "beam search with N beams"),
    "--length-penalty": (LengthPenalty, "for --beams; higher favors longer texts (default: 1)"),
    "--no-stream": (bool, "print a text only when it is complete"),
    "--json": (bool, "JSON lines: prompt, text, ids, logprobs, finish_reason"),
    "--attention-map": (Path, "save all attention weights as .png, .pdf or .svg"),
    "--debug": (bool, "show the traceback of an error"),
}
METAVARS = {Path: "PATH", str: "NAME", int: "N", float: "X"}
DEFAULTS = vars(Sampling()) | {"max_new_tokens": 200, "stop": [], "n": 1, "length_penalty": 1.0}
KINDS = {"decoder": "a decoder", "encoder": "an encoder", "encoder_decoder": "an encoder-decoder"}
GREEDY, SAMPLING, BEAM_SEARCH = "greedy decoding (temperature 0)", "sampling", "beam search"
ONLY_FOR = {  # option: the models or decoding methods on which it has an effect
    **dict.fromkeys(["source", "beams"], (KINDS["encoder_decoder"],)),
    **dict.fromkeys(["max_new_tokens", "stop", "no_stream"], (SAMPLING, GREEDY, BEAM_SEARCH)),
    **dict.fromkeys(["temperature", "repetition_penalty"], (SAMPLING, GREEDY)),
    **dict.fromkeys(["top_k", "top_p", "min_p", "seed", "n"], (SAMPLING,)),
    "length_penalty": (BEAM_SEARCH,),
}


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python sample.py",
        usage="python sample.py [options]     without an input option, stdin is one prompt",
        description="Sample from a checkpoint: a decoder continues a prompt, an encoder-decoder generates "
        f"the target of a source, an encoder fills in {MASK}.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    inputs = parser.add_mutually_exclusive_group()
    for name, (annotation, text) in OPTIONS.items():
        group = inputs if name in ("--prompt", "--source", "--file", "--interactive") else parser
        kind, *_ = get_args(annotation) or [annotation]
        settings = {"type": kind, "metavar": METAVARS.get(kind)}
        if kind is bool:
            settings = {"action": "store_true", "default": None}
        elif kind is list:
            settings = {"action": "append", "metavar": "TEXT"}
        group.add_argument(name, help=text, **settings)
    parser.set_defaults(checkpoint="latest", device="auto", precision="auto")
    return parser


def parse_options(args):
    joined = []
    for arg in args:  # --prompt=-x, since argparse would take -x alone for an option
        if joined and joined[-1] in ("--prompt", "--source", "--stop") and not re.match(r"--\w", arg):
            joined[-1] += f"={arg}"
        else:
            joined.append(arg)
    try:
        options, unknown = make_parser().parse_known_args(joined)
    except argparse.ArgumentError as error:
        hint = "; write a text that looks like an option as --prompt=--text"
        raise ValueError(f"{error}{hint if 'expected one argument' in str(error) else ''}") from None
    if unknown:
        hint = "see --help" if unknown[0].startswith("-") else f"did you mean --prompt {unknown[0]!r}?"
        raise ValueError(f"unknown argument {unknown[0]!r}; {hint}")
    for name, value in vars(options).items():
        option = f"--{name.replace('_', '-')}"
        annotation, _ = OPTIONS[option]
        if value is not None and annotation is list:
            setattr(options, name, ["--" if text == [] else text for text in value])  # argparse drops it
        elif value is not None and get_args(annotation):
            check_value(option, value, annotation)
    return options


def check_options(options, kind, tokenizer, is_seq2seq):
    """Refuse options without effect on this model, and fill in the defaults of the others."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    temperature = given.get("temperature", 0.0 if is_seq2seq else 0.8)
    method = "mask filling" if kind == "encoder" else SAMPLING if temperature else GREEDY
    if kind == "encoder_decoder" and "beams" in given:
        method = BEAM_SEARCH
    for name, where in ONLY_FOR.items():
        if name in given and not {KINDS[kind], method} & set(where):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} is only for {' or '.join(where)}; this is {method} with {KINDS[kind]}"
            )
    if "no_stream" in given and "json" in given:
        raise ValueError("--no-stream has no effect with --json")
    for text in given.get("stop", []):
        if not text:
            raise ValueError("--stop is empty")
        try:
            tokenizer.encode(text)
        except ValueError as error:
            raise ValueError(f"--stop {text!r} can never be generated: {error}") from None
    if "attention_map" in given:
        check_attention_map(options)
    vars(options).update(DEFAULTS | {"temperature": temperature} | given)


def check_attention_map(options):
    path, texts = options.attention_map, options.prompt or options.source or [""]
    if options.interactive or options.file or len(texts) > 1 or (options.n or 1) > 1:
        raise ValueError("--attention-map needs one text: a single --prompt or --source, and no --n")
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--attention-map is {path}; expected a file name that ends in .png, .pdf or .svg")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ValueError(f"--attention-map {path} cannot be written ({error.strerror})") from None
    if not existed:
        path.unlink()


def read_texts(options):
    """The prompts of the command line, the lines of --file, or stdin as one prompt."""
    if texts := options.prompt or options.source:
        return texts
    if options.file is None and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --file or --interactive, or text on stdin")
    name = "stdin" if options.file is None else f"--file {options.file}"
    try:
        data = sys.stdin.buffer.read() if options.file is None else options.file.read_bytes()
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ValueError(f"{name} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{name} is not UTF-8: byte 0x{byte:02x} at offset {error.start}") from None
    texts = [text.removesuffix("\n")] if options.file is None else [t for t in text.split("\n") if t.strip()]
    if not texts:
        raise ValueError(f"{name} has no prompt; each line is one")
    return texts
