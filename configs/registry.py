"""Registry: plain data such as {kind: gqa, queries_per_kv: 2} becomes an object, checked by
annotations."""

import inspect
import math
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

Schema = TypeVar("Schema")
Kind = TypeVar("Kind")
LARGEST = 2**63 - 1  # integer of torch; a bound that no message names
UNIONS = (Union, UnionType)  # of `Count | None`, `int | None`


@dataclass(frozen=True)
class Bounds:
    """The range of a number: Annotated[float, Bounds(above=0)]."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def allow(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        ends = {
            "at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        return " and ".join(f"{word} {end:,}" for word, end in ends.items() if abs(end) < LARGEST)


Natural = Annotated[int, Bounds(least=0, most=LARGEST)]
Count = Annotated[int, Bounds(least=1, most=LARGEST)]
Positive = Annotated[float, Bounds(above=0)]
NonNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Ratio = Annotated[float, Bounds(above=0, below=1)]  # neither none nor all
BelowOne = Annotated[float, Bounds(least=0, below=1)]


class SettingError(ValueError):
    """A name or a value is not known. It may mean one of `known`, or any setting without them;
    configs/explain.py adds the nearest."""

    def __init__(self, message: str, given: str = "", known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.given = given
        self.known = known


class Registry(UserDict[str, Kind]):
    """The kinds of a part; none replaces another. A kind is an object, or "module:name" of one, which
    is imported when it is asked for: Registry(mha=MultiHead, mla="model.mla:MultiHeadLatent")."""

    def __init__(self, **kinds: Kind | str) -> None:
        super().__init__(kinds)  # type: ignore[arg-type]

    def __setitem__(self, name: str, kind: Kind | str) -> None:
        if name in self:
            raise ValueError(f"{name!r} is the name of another kind; choose a new one")
        self.data[name] = kind  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Kind:
        kind = self.data[name]
        return resolve_name(kind) if isinstance(kind, str) else kind


NAMES = {
    NoneType: "null",
    float: "a number",
    int: "an integer",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a group of settings",
}


def alternatives(annotation: Any) -> list[tuple[Any, Bounds]]:
    """What a value may be: Count | Literal["auto"] is an integer of some bounds, or "auto"."""
    base, inner = get_origin(annotation), get_args(annotation)
    if base in UNIONS:
        return [pair for option in inner for pair in alternatives(option)]
    if base is Literal:
        return [(value, Bounds()) for value in inner]
    if base is Annotated:
        return [inner]
    return [(base or annotation, Bounds())]


def allows(kind: Any, bounds: Bounds, value: Any) -> bool:
    """What lists and dicts contain is not checked."""
    if kind in (int, float):
        return type(value) in (int, kind) and bounds.allow(value)
    return kind in (Any, inspect.Parameter.empty, type(value)) or value == kind


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """The value, if its annotation allows it; 1e3 passes as an integer, too."""
    is_group = is_dataclass(annotation)
    if is_group:
        if isinstance(value, dict):
            return from_dict(annotation, value, f"{name}.")
        settings = [f"{name}.{option}" for option in signature(annotation)]
        message = (
            f"{name} is {value!r:.60}; expected its settings one by one: {', '.join(settings)}"
        )
        raise SettingError(message, f"{name}={value}", settings)
    options = alternatives(annotation)
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    for candidate in (value, whole):
        if any(allows(kind, bounds, candidate) for kind, bounds in options):
            return candidate
    words = [f"{NAMES.get(kind, kind)} {bounds}".strip() for kind, bounds in options]
    message = f"{name} is {value!r:.60}; expected {' or '.join(words)}"
    if NAMES[dict] in words:
        raise SettingError(message, f"{name}={value}")  # attention=mla, perhaps
    raise SettingError(message, str(value), words)


def from_dict(schema: type[Schema], values: dict[str, Any], path: str = "") -> Schema:
    """A dataclass from plain data; unknown and missing keys are errors."""
    return construct(path, schema, values, {})


def flatten(node: dict[str, Any], path: str = "") -> dict[str, Any]:
    """{dotted key: value} of nested dicts."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """The inverse of flatten."""
    nodes: dict[str, Any] = {}
    for name, value in flat.items():
        *path, option = name.split(".")
        node = nodes
        for part in path:
            node = node.setdefault(part, {})
        node[option] = value
    return nodes


@cache
def signature(constructor: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Its parameters, but for those that a partial has fixed."""
    fixed = constructor.keywords if isinstance(constructor, partial) else {}
    parameters = inspect.signature(constructor).parameters
    return {name: parameters[name] for name in parameters if name not in fixed}


def construct(
    path: str, constructor: Callable[..., Any], options: dict[str, Any], shared: dict[str, Any]
) -> Any:
    """constructor(**options), and those of the shared values that it has a parameter for: what the
    caller knows and no option can set, such as d_model. The path, such as "train." or
    "optimizer (muon): ", is that of an option in a message."""
    parameters = signature(constructor)
    arguments = {name: value for name, value in shared.items() if name in parameters}
    known = {name: p for name, p in parameters.items() if name not in shared}
    # what is null asks for nothing: a run may have a setting that is gone
    if unknown := [name for name in options if name not in known and options[name] is not None]:
        names = ", ".join(known) or "none"
        message = f"unknown setting {path}{unknown[0]}; the known ones are: {names}"
        raise SettingError(message, unknown[0], list(known) if path else ())
    for name, parameter in known.items():
        if name in options:
            arguments[name] = check_value(f"{path}{name}", options[name], parameter.annotation)
        elif parameter.default is parameter.empty:
            raise ValueError(f"{path}{name} is missing")
    try:
        return constructor(**arguments)
    except ValueError as error:
        error.args = (f"{path}{error}",)
        raise


def build(
    name: str,
    kinds: Mapping[str, Any],
    node: Any,
    shared: dict[str, Any],
    needs: str | None = None,
) -> Any:
    """kinds[node["kind"]] with its other options. needs: only kinds with this parameter, such as
    `memory` of attentions that can be cross-attention."""
    options = dict(node)
    kind = options.pop("kind", None)

    def fits(kind: str) -> bool:
        return needs is None or needs in signature(kinds[kind])

    if kind not in list(kinds) or not fits(kind):
        names = list(filter(fits, kinds))
        message = f"{name}.kind is {kind!r:.60}; choose one of: {', '.join(names)}"
        raise SettingError(message, str(kind), names)
    return construct(f"{name} ({kind}): ", kinds[kind], options, shared)
