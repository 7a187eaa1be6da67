"""Explain: an error becomes one sentence and an exit code, with the name that was probably meant. A run
without errors never reads it."""

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from torch import OutOfMemoryError

from configs.parts import CONFIGS
from configs.registry import SettingError, flatten

# of errors without an exit_code, which those of configs/errors.py have
EXIT_CODES: dict[type[Exception], int] = {
    FloatingPointError: 5,
    MemoryError: 6,
    OSError: 6,
    ValueError: 2,
    argparse.ArgumentError: 2,
}
ALIKE = 1.3  # of 2.0, the similarity of two equal names
LOST_PEER = re.compile("gloo|NCCL|remote process|[Tt]imed out|Connection (closed|reset)")
HINTS = {  # beside the options of a group
    "model": "; size= sets the size; the weights of a model, also of other families such as Mistral or "
    "Phi, are imported by init_from=openai-community/gpt2-medium",
    "data": "; a file is read by data=text or data=table, conversations by data=chat, and data.path=...",
}


def explain(error: Exception) -> tuple[int | None, str]:
    """(exit code, sentence); the code of a bug is None."""
    message = str(error) or "out of memory"  # Python's MemoryError says nothing
    reason = message.partition("\n")[0]
    codes = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    code = getattr(error, "exit_code", next(codes, None))
    if isinstance(error, SettingError):
        return code, message + did_you_mean(error.given, error.known)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return 2, explain_hydra(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return code, place + error.strerror.lower()
    if isinstance(error, OutOfMemoryError) or "can't allocate memory" in reason:
        return 6, f"out of memory ({reason}); lower train.micro_batch_size, or choose a size="
    if isinstance(error, RuntimeError) and "can't start new thread" in reason:
        return 6, "no more threads can be started; raise the limit of processes (ulimit -u)"
    if isinstance(error, RuntimeError) and LOST_PEER.search(message):
        return 7, f"another process of this run has ended or does not respond ({reason})"
    return code, message


def did_you_mean(given: str, known: Sequence[str] = ()) -> str:
    """The nearest of the known names, or of all settings; given as name, name=value, --name=value."""
    name, equals, value = given.lstrip("-").partition("=")
    near = nearest(name, known or list(known_settings()))
    return f" (did you mean {near}{equals}{value}?)" if near else ""


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that this one looks most like, or what other projects call it; or ""."""
    synonyms = yaml.safe_load((CONFIGS / "synonyms.yaml").read_text(encoding="utf-8"))
    pairs = [(ours, str(other)) for ours in known for other in (ours, *synonyms.get(ours, ()))]
    # the last part counts twice: model.attention.windw is like model.attention.sliding_window
    alike, found = max(
        (ratio(name, other) + ratio(last(name), last(other)), ours) for ours, other in pairs
    )
    return found if alike > ALIKE else ""


def ratio(a: str, b: str) -> float:
    """How alike their letters and digits are, from 0 to 1."""
    a, b = (re.sub(r"[\W_]", "", name.lower()) for name in (a, b))
    return SequenceMatcher(None, a, b).ratio()


def last(name: str) -> str:
    return re.split("[./]", name)[-1]


def known_settings() -> dict[str, list[str]]:
    """{setting, or group: the options that have it}"""
    options: dict[str, list[str]] = defaultdict(list)
    for path in [CONFIGS / "train.yaml", *sorted(CONFIGS.glob("*/*.yaml"))]:
        text = path.read_text(encoding="utf-8")
        settings = yaml.safe_load(text)
        settings.pop("hydra", None)
        package = re.match(r"# @package (\w.*)", text)
        for name in flatten(settings, f"{package[1]}." if package else ""):
            options[name].append(f"{path.parent.name}={path.stem}")
        options[path.parent.name] = []
    # a kind is chosen by an option of its group
    no_names = {"kind", "defaults", CONFIGS.name}
    return {name: found for name, found in options.items() if last(name) not in no_names}


def explain_hydra(error: Exception) -> str:
    """An error of Hydra or OmegaConf in one sentence, with the name that was probably meant."""
    text = str(error)
    if override := getattr(error, "override", None):
        # model: gpt2
        match = re.fullmatch(r"([\w.]+) *[:=] *(\S+)", override)
        example = f"{match[1]}={match[2]}" if match else "model=gpt2 train.steps=200"
        return f"cannot parse {override!r:.60}; write group=option or key=value, each as one shell word, such as {example}"
    if isinstance(error, MissingConfigException) and error.options:
        # of optimizer/sgd, or hydra/launcher/slurm
        [(group, option)] = re.findall("((?:hydra/)?.+?)/(.*)", str(error.missing_cfg_file))
        hint = did_you_mean(option, error.options)
        known = f"choose one of: {', '.join(error.options)}{HINTS.get(group, '')}"
        return f"unknown option {group}={option}{hint}; {known}"
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+)'", text):
        return f"{match[1]} lists several values; -m runs one training for each"
    # Could not override 'train.stepz'. / Could not delete from config. 'train.stepz' does not exist.
    if match := re.search(r"Could not (?:override|delete)(?: from config\.)? '(.+?)'", text):
        return unknown_setting(match[1])
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is required"
    return text.partition("\n")[0]


def unknown_setting(key: str) -> str:
    """Name the options that have this setting, or the nearest name."""
    if options := known_settings().get(key):
        hint = HINTS.get(options[0].partition("=")[0], "")
        return f"{key} is a setting of {' or '.join(options)}, which is not chosen{hint}"
    return f"unknown setting {key}{did_you_mean(key)}; --cfg job prints all"
