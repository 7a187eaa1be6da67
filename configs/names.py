"""Names: what a name that is not known probably means. Only a refused command line needs this file."""

from collections import defaultdict
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

import yaml

from configs.parts import CONFIGS
from configs.registry import flatten

ALIKE = 1.3  # of 2.0, the similarity of two equal names


def read(path: Any) -> dict[str, Any]:
    node: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return node


def known_settings() -> dict[str, list[str]]:
    """{setting: the options that have it}"""
    options: dict[str, list[str]] = defaultdict(list)
    for path in [CONFIGS / "train.yaml", *sorted(CONFIGS.glob("*/*.yaml"))]:
        settings = read(path)
        settings.pop("hydra", None)
        settings.pop("defaults", None)
        # the first line of an option may be "# @package model.attention"
        package = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# @package ")
        prefix = f"{package}." if package[0].isalpha() else ""
        for name in flatten(settings, prefix):
            options[name].append(f"{path.parent.name}={path.stem}")
    # a kind is chosen by an option of its group
    return {name: found for name, found in options.items() if last(name) != "kind"}


def known_groups() -> list[str]:
    return sorted(folder.name for folder in CONFIGS.iterdir() if folder.is_dir())


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that this one looks most like, or what other projects call it; or "". The last
    part counts twice: model.attention.windw is like model.attention.sliding_window."""
    synonyms = read(CONFIGS / "synonyms.yaml")
    found = ""
    best = ALIKE
    for ours in known:
        for other in (ours, *synonyms.get(ours, ())):
            alike = similarity(name, str(other)) + similarity(last(name), last(str(other)))
            if alike > best:
                found = ours
                best = alike
    return found


def last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2]


def similarity(a: str, b: str) -> float:
    """Between 0 and 1, of their letters and digits."""
    return SequenceMatcher(None, plain(a), plain(b), autojunk=False).ratio()


def plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
