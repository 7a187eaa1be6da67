"""Explain: an error becomes one sentence and an exit code. A run without errors never reads it."""

import argparse
import re
from collections.abc import Sequence

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from torch import OutOfMemoryError

from configs.names import known_groups, known_settings, nearest
from configs.registry import SettingError

# of errors without an exit_code, which those of configs/errors.py have
EXIT_CODES: dict[type[Exception], int] = {
    FloatingPointError: 5,
    MemoryError: 6,
    OSError: 6,
    ValueError: 2,
    argparse.ArgumentError: 2,
}
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
    if isinstance(error, BrokenPipeError):  # of train.py, reported by training/compare.py
        return code, "the output is no longer read"
    if isinstance(error, OSError) and error.strerror:
        return code, f"{error.filename or 'the disk'}: {error.strerror.lower()}"
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
    near = nearest(name, known or [*known_settings(), *known_groups()])
    return f" (did you mean {near}{equals}{value}?)" if near else ""


def explain_hydra(error: Exception) -> str:
    """An error of Hydra or OmegaConf in one sentence, with the name that was probably meant."""
    text = str(error)
    if override := getattr(error, "override", None):
        return explain_word(override)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        hint = did_you_mean(option, error.options)
        known = f"choose one of: {', '.join(error.options)}{HINTS.get(group, '')}"
        return f"unknown option {group}={option}{hint}; {known}"
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+)'", text):
        return f"{match[1]} lists several values; -m runs one training for each"
    if match := re.search(r"Multiple values for (\S+)\. |An item is already at '(.+)'", text):
        name = match[1] or match[2]
        return f"{name} has a value already; without +, {name}=... replaces it"
    # Could not override 'train.stepz'. / Could not delete from config. 'train.stepz' does not exist.
    if match := re.search(r"Could not (?:override|delete)(?: from config\.)? '(.+?)'", text):
        return unknown_setting(match[1])
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is required"
    return text.partition("\n")[0]


def explain_word(word: str) -> str:
    """A word of the command line that Hydra cannot parse."""
    example = "experiment=shakespeare_char train.steps=200"
    if match := re.fullmatch(r"([\w.]+)(?: *[:=] *)(\S+)", word):  # model: gpt2
        example = f"{match[1]}={match[2]}"
    rule = "group=option or key=value, each as one shell word"
    return f"cannot parse {word!r:.60}; write {rule}, such as {example}"


def unknown_setting(key: str) -> str:
    """Name the options that have this setting, or the nearest name."""
    options = known_settings().get(key)
    if options:
        group = options[0].partition("=")[0]
        hint = HINTS.get(group, "")
        return f"{key} is a setting of {' or '.join(options)}, which is not chosen{hint}"
    return f"unknown setting {key}{did_you_mean(key)}; --cfg job prints all"
