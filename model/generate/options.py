"""Options: the command line of sample.py. An option that would have no effect is an error."""

import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, get_args

from configs.cli import ArgumentParser, as_utf8, expand_user
from configs.registry import Bounds, Count, NonNegative, Positive, check_value
from model.generate.beams import Beams, LengthPenalty
from model.generate.decode import MaxNewTokens
from model.generate.prompt import MASK
from model.generate.sampling import Probability, Sampling, Seed

SAMPLING, GREEDY, BEAM_SEARCH = "sampling", "greedy decoding (temperature 0)", "beam search"
MODELS = {"decoder": "a decoder", "encoder": "an encoder", "encoder_decoder": "an encoder-decoder"}
DECODING, SEQ2SEQ = (
    (SAMPLING, GREEDY, BEAM_SEARCH),
    "an encoder-decoder or a decoder trained on pairs",
)

OPTIONS = {  # name: (type, help, *where it has an effect, if not everywhere); a list may be repeated
    "prompt": (list, "text to continue, or a source"),
    "source": (list, "text whose target to generate", SEQ2SEQ),
    "file": (Path, "file with one prompt per line"),
    "interactive": (bool, "read one prompt after another"),
    "slide": (bool, "truncate a prompt longer than the context on the left"),
    "run": (Path, "run folder (default: the newest with a checkpoint)"),
    "checkpoint": (str, "latest (default), best, or a step"),
    "device": (str, "auto (default), cpu, cuda or mps"),
    "precision": (str, "auto (default), fp32, bf16 or fp16"),
    "max_new_tokens": (MaxNewTokens, "maximum length in tokens (default: 200)", *DECODING),
    "stop": (list, "stop before this string", *DECODING),
    "temperature": (
        NonNegative,
        "0 is greedy (default: 0.8; trained on pairs: 0)",
        SAMPLING,
        GREEDY,
    ),
    "top_k": (Count, "sample from the N most likely tokens", SAMPLING),
    "top_p": (Probability, "from the smallest set with total probability X", SAMPLING),
    "min_p": (Probability, "from tokens at least X times as likely as the top one", SAMPLING),
    "repetition_penalty": (
        Positive,
        "above 1, penalize tokens already in the text",
        SAMPLING,
        GREEDY,
    ),
    "seed": (Seed, "random seed (default: 0)", SAMPLING),
    "n": (Annotated[int, Bounds(1, 1000)], "number of samples per prompt (default: 1)", SAMPLING),
    "beams": (Beams, "beam search with N beams", MODELS["encoder_decoder"]),
    "length_penalty": (
        LengthPenalty,
        "for --beams; higher favors longer texts (default: 1)",
        BEAM_SEARCH,
    ),
    "no_stream": (bool, "print a text only when it is complete", *DECODING),
    "json": (bool, "JSON lines: prompt, text, ids, logprobs, finish_reason"),
    "attention_map": (Path, "save all attention weights as .png, .pdf or .svg"),
    "debug": (bool, "show the traceback of an error"),
}
METAVARS = {Path: "PATH", str: "NAME", int: "N", float: "X"}
SETTINGS = {
    list: {"action": "append", "metavar": "TEXT"},
    bool: {"action": "store_true", "default": None},
}
# what other projects call an option
SYNONYMS = {
    "start": "prompt",
    "out_dir": "run",
    "num_samples": "n",
    "ckpt": "checkpoint",
    "num_beams": "beams",
}
DEFAULTS = {"max_new_tokens": 200, "stop": [], "n": 1, "length_penalty": 1.0}


def flag(name):
    return f"--{name.replace('_', '-')}"


def make_parser():
    parser = ArgumentParser(
        prog="python sample.py",
        usage="python sample.py [options]     without an input option, stdin is one prompt",
        description="Sample from a checkpoint: a decoder continues a prompt, an encoder-decoder generates "
        f"the target of a source, an encoder fills in {MASK}.",
        allow_abbrev=False,
    )
    inputs = parser.add_mutually_exclusive_group()
    for name, (annotation, text, *_) in OPTIONS.items():
        group = inputs if name in ("prompt", "source", "file", "interactive") else parser
        kind, *_ = get_args(annotation) or [annotation]
        settings = SETTINGS.get(kind) or {"type": kind, "metavar": METAVARS[kind]}
        group.add_argument(flag(name), help=text, **settings)
    parser.set_defaults(checkpoint="latest", device="auto", precision="auto")
    return parser


def parse_options(args):
    joined = []
    for arg in args:  # --prompt=-x, since argparse would take -x alone for an option
        if (
            joined
            and joined[-1] in ("--prompt", "--source", "--stop")
            and not re.match(r"--\w", arg)
        ):
            joined[-1] += f"={arg}"
        else:
            joined.append(arg)
    try:
        options, unknown = make_parser().parse_known_args(joined)
    except ValueError as error:
        hint = "; write a text that looks like an option as --prompt=--text"
        raise ValueError(
            f"{error}{hint if 'expected one argument' in str(error) else ''}"
        ) from None
    if unknown:
        name = unknown[0].partition("=")[0].strip("-").replace("-", "_")
        near = SYNONYMS.get(name) or next(iter(get_close_matches(name, OPTIONS, 1)), None)
        hint = f"did you mean {flag(near)}?" if near else "see --help"
        if not unknown[0].startswith("-"):
            hint = (
                f"did you mean --{'run' if Path(unknown[0]).is_dir() else 'prompt'} {unknown[0]!r}?"
            )
        raise ValueError(f"unknown argument {unknown[0]!r}; {hint}")
    for name, value in vars(options).items():
        annotation, *_ = OPTIONS[name]
        if value and annotation is list:
            value = ["--" if text == [] else as_utf8(text) for text in value]  # argparse drops it
            setattr(options, name, value)
        elif isinstance(value, Path):
            setattr(options, name, expand_user(value))
        elif value is not None and get_args(annotation):
            check_value(flag(name), value, annotation)
    return options


def check_options(options, kind, tokenizer, is_seq2seq):
    """Refuse options without effect on this model, fill in the other defaults, and set options.sampling."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    sampling = {"temperature": 0.0 if is_seq2seq else 0.8} | given
    sampling = Sampling(**{name: sampling[name] for name in vars(Sampling()) if name in sampling})
    method = "mask filling" if kind == "encoder" else SAMPLING if sampling.temperature else GREEDY
    if kind == "encoder_decoder" and "beams" in given:
        method = BEAM_SEARCH
    for name in given:
        _, _, *uses = OPTIONS[name]
        if uses and not {method, MODELS[kind], is_seq2seq and SEQ2SEQ} & {*uses}:
            where = f"{' or '.join(uses)}; this is {method} with {MODELS[kind]}"
            raise ValueError(f"{flag(name)} is only for {where}")
    if options.no_stream and options.json:
        raise ValueError("--no-stream has no effect with --json")
    for text in options.stop or []:
        if not text:
            raise ValueError("--stop is empty")
        try:
            tokenizer.encode(text)
        except ValueError as error:
            raise ValueError(f"--stop {text!r} can never be generated: {error}") from None
    vars(options).update(DEFAULTS | given | {"sampling": sampling})
    if path := options.attention_map:
        texts = options.prompt or options.source or []
        if options.interactive or options.file or len(texts) > 1 or options.n > 1:
            raise ValueError(
                "--attention-map needs one text: a single --prompt or --source, and no --n"
            )
        if path.suffix not in (".png", ".pdf", ".svg"):
            raise ValueError(
                f"--attention-map is {path}; expected a file name with .png, .pdf or .svg"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"--attention-map {path} cannot be written")


def read_texts(options):
    """The prompts of the command line, the lines of --file, or stdin as one prompt."""
    if texts := options.prompt or options.source:
        return texts
    file, name = options.file, f"--file {options.file}" if options.file else "stdin"
    if not file and sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --file or --interactive, or text on stdin")
    try:
        data = file.read_bytes() if file else sys.stdin.buffer.read()
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            error.strerror.lower()
            if isinstance(error, OSError)
            else f"not UTF-8 at byte {error.start}"
        )
        raise ValueError(f"{name} cannot be read ({reason})") from None
    texts = (
        [line for line in text.split("\n") if line.strip()] if file else [text.removesuffix("\n")]
    )
    if not texts:
        raise ValueError(f"{name} has no prompt; each line is one")
    return texts
