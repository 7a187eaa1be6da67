"""Explain: turns an error into an exit code and one sentence, with the name that was probably
meant."""

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches

from configs.compose import read_yaml
from configs.flat import flatten
from configs.parts import CONFIGS

# of errors without an exit_code attribute (those of configs/errors.py have one)
EXIT_CODES = {
    FloatingPointError: 5,
    MemoryError: 6,
    OSError: 6,
    OverflowError: 2,  # of a port
    ValueError: 2,
    argparse.ArgumentError: 2,
}
LOST_PEER = "gloo|NCCL|remote process|[Tt]imed out|Broken pipe|Connection (closed|reset)"
HINTS = {  # printed after the options of a group
    "model": "; size= sets the size, init_from= loads a model: init_from=openai-community/gpt2-medium",
    "data": "; a file is read by data=text or data=table, conversations by data=chat, and data.path=...",
}


def explain(error: Exception) -> tuple[int | None, str]:
    """Returns (exit code, sentence); the code of a bug is None."""
    message = str(error) or "out of memory"  # Python's MemoryError says nothing
    reason = message.partition("\n")[0]
    if type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return 2, explain_hydra(error)
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in reason:
        return 6, f"out of memory ({reason}); lower train.micro_batch_size, or choose a size="
    if isinstance(error, RuntimeError):
        if "can't start new thread" in reason:
            return 6, f"the system allows no more threads ({reason}); raise ulimit -u"
        if re.search(LOST_PEER, message):
            return 7, f"another process of this run has ended or does not respond ({reason})"
    codes = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    code = getattr(error, "exit_code", next(codes, None))
    if isinstance(error, BrokenPipeError):  # from train.py, reported by training/settings.py
        return code, "the output pipe was closed"
    if isinstance(error, OSError) and error.strerror:
        return code, f"{error.filename or 'the system'}: {error.strerror.lower()}"
    if isinstance(error, UnicodeEncodeError):
        return code, f"{message}; set PYTHONUTF8=1 for names and texts beyond ASCII"
    return code, message


def explain_hydra(error: Exception) -> str:
    """Explain an error of Hydra or OmegaConf in one sentence, with the name that was meant."""
    text = str(error)
    if override := getattr(error, "override", None):
        if override.endswith(".py"):
            hint = "name an experiment, such as experiment=shakespeare_char, or write key=value"
            return f"settings are not read from a Python file such as {override}; {hint}"
        example = "group=option or key=value, such as experiment=shakespeare_char train.steps=200"
        return f"cannot parse {override!r:.60}; write {example}, each as one shell word"
    # Could not find 'optimizer/sgd' / Available options in 'optimizer': / <tab> adamw ...
    if match := re.search(r"Could not find '((?:hydra/)?.+?)/(.*)'", text):
        group, option = match.groups()
        options = re.findall(r"(?m)^\t([\w-]+)$", text)
        hint = did_you_mean(option, options)
        known = f"choose one of: {', '.join(options)}{HINTS.get(group, '')}"
        return f"unknown option {group}={option}{hint}; {known}"
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+)'", text):
        return f"{match[1]} lists several values; -m runs one training for each"
    # Could not override 'train.stepz'. / Could not delete from config. 'train.stepz' does not exist.
    if match := re.search(r"Could not (?:override|delete)(?: from config\.)? '(.+?)'", text):
        return unknown_setting(match[1])
    return text.partition("\n")[0]


def unknown_setting(key: str) -> str:
    """Name the options that have this setting, or the nearest name."""
    options = defaultdict(list)  # the options that have each setting
    for path in [CONFIGS / "train.yaml", *sorted(CONFIGS.glob("*/*.yaml"))]:
        node = read_yaml(path)
        node.pop("hydra", None)  # settings of Hydra itself
        package = re.search(r"# @package ([a-z].*)", path.read_text(encoding="utf-8"))
        prefix = f"{package[1]}." if package else ""
        for name in flatten(node, prefix):
            options[name].append(f"{path.parent.name}={path.stem}")
    if key in options:
        hint = "select it, also to resume a run that has it"
        return f"{key} is a setting of {' or '.join(options[key])}, which is not selected; {hint}"
    groups = [folder.name for folder in CONFIGS.iterdir() if folder.is_dir()]
    if key in groups:
        return f"a preset cannot choose {key}=, which is composed later; an experiment can"
    return f"unknown setting {key}{did_you_mean(key, [*options, *groups])}; --cfg job prints all"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint with the nearest known name whose last part, or a synonym of it, looks like that of
    this one: model.attention.windw looks like `window`, which means sliding_window."""
    synonyms = read_yaml(CONFIGS / "synonyms.yaml")
    meaning = {str(other): ours for ours in synonyms for other in synonyms[ours]}
    *_, last = name.split(".")
    words = [key.rpartition(".")[2] for key in known]
    alike = [name] if name in meaning else get_close_matches(last, [*words, *meaning], 3, 0.75)
    ends = tuple(f".{meaning.get(word, word)}" for word in alike)  # of ".model.ffn.d_ff"
    meant = [key for key in known if f".{key}".endswith(ends)]
    near = get_close_matches(name, meant, 1, 0)
    return f" (did you mean {near[0]}?)" if near else ""
