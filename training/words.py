"""Words: what stands on a command line, as Hydra reads it, and what Hydra says of it, in one sentence."""

import re
from difflib import get_close_matches
from itertools import product
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

CONFIGS = Path(__file__).parent.parent / "configs"
PATHS = ("data.path", "data.id", "data.source", "data.target", "data.cache", "init_from")

# what others call some of the settings
ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr"), "optimizer.rate"),
    **dict.fromkeys(("max_iters", "max_steps", "iterations", "num_train_steps"), "train.steps"),
    **dict.fromkeys(("epochs", "num_train_epochs", "max_tokens"), "train.tokens"),
    **dict.fromkeys(("block_size", "seq_len", "seq_length", "max_length", "n_positions"), "model.context"),
    **dict.fromkeys(("n_embd", "dim", "hidden_size", "width"), "model.d_model"),
    **dict.fromkeys(("n_layer", "depth", "num_layers"), "model.n_layers"),
    **dict.fromkeys(("n_head", "heads", "num_heads"), "model.n_heads"),
    "gradient_accumulation_steps": "train.micro_batch",
    "wandb_log": "wandb.mode",
    "dtype": "precision",
}


def quoted(word):
    """A value that is a path is taken as it is, whatever characters it holds."""
    key, equals, value = word.partition("=")
    if not equals or key not in PATHS or value == "null":
        return word
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), value)
    return f"{key}='{escaped.replace('${', chr(92) + '${')}'"


def composed(words):
    """The files in configs/, changed by the words."""
    for word in words:
        group, _, value = word.partition("=")
        if value.startswith("[") and (CONFIGS / group.partition("@")[0]).is_dir():
            raise ValueError(
                f"{word} lists kinds and {group} is one; -m {group}=a,b trains one model for each"
            )
        if word.lstrip("+~").startswith("hydra"):
            raise ValueError(
                f"{word.partition('=')[0]} is a setting of Hydra's own, and those do not act here"
            )
        if word[0] == "~" and (CONFIGS / word[1:].partition("=")[0]).is_dir():
            raise ValueError(
                f"{word} takes out what a run needs; {word[1:].partition('=')[0]}=... chooses another"
            )
        if "${" in word and quoted(word) == word:
            raise ValueError(f"{word}: a value is plain data and refers to nothing else")
    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return hydra.compose("train", [quoted(word) for word in words])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(sentence(error, words)) from None


def combinations(words):
    """A sweep: one list of words for each combination of the values that they list, in Hydra's grammar."""
    choices = []
    for word, override in zip(words, parsed(words, sweeps=True), strict=True):
        key, _, value = word.partition("=")
        several = key in PATHS and not Path(value).exists()
        choices.append([f"{key}={path}" for path in value.split(",")] if several else [word])
        if override.is_sweep_override():
            key = override.get_key_element()
            choices[-1] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [list(combination) for combination in product(*choices)]


def parsed(words, sweeps=False):
    """Each word as Hydra reads it."""
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        try:
            overrides = parser.parse_overrides([quoted(word) for word in words])
        except HydraException as error:
            raise ValueError(sentence(error, words)) from None
    for word, override in zip(words, overrides, strict=True):
        if override.is_sweep_override() and not sweeps:
            raise ValueError(f"{word} lists several values, and one run has one")
    return overrides


def sentence(error, words):
    """What Hydra says over many lines, in one: what is wrong, what there is, what was meant."""
    full = str(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not understood; write group=kind or key=value, each a word of its own"
    if found := re.search(r"Could not find '(.+)/(.*)'", full):
        group, kind = found.groups()
        kinds = re.findall(r"\n\t(\w+)", full.split("Config search path")[0])
        if not kind:
            return f"{group}= names no kind; choose one of: {', '.join(kinds)}"
        return f"there is no {group}={kind}{guess(kind, kinds)}; choose one of: {', '.join(kinds)}"
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+)'", full):
        return f"{found[1]} lists several values; -m trains one model for each of them, one after another"
    if found := re.search(r"Multiple values for (.+?)\. To|An item is already at '(.+?)'", full):
        key = found[1] or found[2]
        return f"+ adds what there is not yet, and there is {key}; write {key}= without it"
    if "Config group override must be" in full:
        odd = next((word for word in words if word.endswith(("=null", "={}"))), "one of them")
        return f"a group needs the name of a kind, group=kind, and {odd} has none"
    if found := re.search(r"Could not override '(.+)'|Key '.+' not in|Key '.+' is not in", full):
        key = found[1] or error.full_key
        return unknown(key, known_keys(words, key))
    # the rest keeps its words, without search paths and types
    said = " ".join(re.split(r"\n\s*(?:Config search path|See https|full_key|object_type)", full)[0].split())
    key = error.full_key if isinstance(error, OmegaConfBaseException) else None
    if isinstance(error, MissingMandatoryValue):
        return f"{key} has no value: it cannot be left out"
    return f"{key}: {said}" if key else said


def known_keys(words, wrong):
    """The groups, and every option there would be without the wrong word."""
    groups = [path.name for path in CONFIGS.iterdir() if path.is_dir()]
    others = [word for word in words if wrong not in word]
    if others == list(words):  # it stands in a file
        return groups
    try:
        return groups + list(leaves(composed(others), ""))
    except ValueError:
        return groups


def leaves(node, path):
    for key, value in node.items():
        yield f"{path}{key}"
        if OmegaConf.is_dict(value):
            yield from leaves(value, f"{path}{key}.")


def unknown(key, known):
    """That there is no such setting, and which there are beside it."""
    known = [other for other in known if not key.startswith(f"{other}.")]
    beside = [other for other in known if other.rpartition(".")[0] == key.rpartition(".")[0]]
    meant = guess(key, known)
    there = f"; there are {', '.join(beside)}" if beside and "." in key and not meant else ""
    return f"there is no {key}{meant}{there}"


def guess(word, known):
    """The nearest of the known: it ends alike, or others call it so, or it looks alike."""
    last = word.rpartition(".")[2]
    alike = [
        other for other in known if other.rpartition(".")[2] == last and ("." in other or "." not in word)
    ]
    near = sorted(alike, key=len)[:1]
    close = get_close_matches(word, known, 1, 0.7 if "." in word else 0.6)
    near += [ELSEWHERE[last]] if last in ELSEWHERE else close
    return f" (did you mean {near[0]}?)" if near else ""
