"""Registry: plain data such as {kind: gqa, queries_per_kv: 2} becomes an object, checked by
annotations."""

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

Schema = TypeVar("Schema")


@dataclass(frozen=True)
class Bounds:
    """The range of a number: Annotated[float, Bounds(above=0)]."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def allow(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        phrases = {"above": "above", "least": "at least", "below": "below", "most": "at most"}
        ends = {name: getattr(self, name) for name in phrases if math.isfinite(getattr(self, name))}
        if ends.keys() == {"least", "most"}:
            return f"from {self.least:,} to {self.most:,}"
        return " and ".join(f"{phrases[name]} {value:,}" for name, value in ends.items())


Count = Annotated[int, Bounds(least=1)]
Positive = Annotated[float, Bounds(above=0)]
NonNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Ratio = Annotated[float, Bounds(above=0, below=1)]  # neither none nor all
Decay = Annotated[float, Bounds(least=0, below=1)]

NAMES = {
    NoneType: "null",
    float: "a number",
    int: "an integer",
    bool: "true or false",
    str: "a string",
}
NAMES |= {list: "a list", dict: "a group of settings"}


def matches(value: Any, annotation: Any) -> bool:
    if annotation in (Any, inspect.Parameter.empty):
        return True
    base, inner = get_origin(annotation), get_args(annotation)
    if base is Annotated:
        kind, limit = inner
        if isinstance(limit, tuple):
            return any(type(value) is type(choice) and value == choice for choice in limit)
        return matches(value, kind) and limit.allow(value)
    if base in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, base) and all(matches(item, inner[-1]) for item in items)
    if inner:
        return any(matches(value, option) for option in inner)
    if annotation is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is annotation and (annotation is not str or "\0" not in value)


def describe_type(annotation: Any) -> str:
    base, inner = get_origin(annotation), get_args(annotation)
    if base is Annotated:
        kind, limit = inner
        if not isinstance(limit, tuple):
            return f"{describe_type(kind)} {limit}"
        choices = ", ".join(str(choice).lower() for choice in limit)
        return f"one of: {choices}" if len(limit) > 1 else choices
    if base is list and inner[0] in NAMES:
        return f"a list of {NAMES[inner[0]].split()[-1]}s"
    if inner and base not in (list, dict):
        return " or ".join(map(describe_type, inner))
    return NAMES.get(base or annotation) or annotation.__name__


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """The value, if its annotation allows it; 1e3 passes as an integer, too."""
    if isinstance(value, float) and value.is_integer() and not matches(value, annotation):
        value = int(value) if matches(int(value), annotation) else value
    if not matches(value, annotation):
        raise ValueError(f"{name} is {value!r:.60}; expected {describe_type(annotation)}")
    return value


def from_dict(schema: type[Schema], values: Any, path: str = "") -> Schema:
    """A dataclass from plain data; unknown and missing keys are errors."""
    hints = get_type_hints(schema, include_extras=True)
    if not isinstance(values, dict):
        first, hint = next(iter(hints.items()))
        example = f"{path}{first}={values if matches(values, hint) else '...'}"
        raise ValueError(f"{path[:-1]} is a group of settings; set one of them, such as {example}")
    if unknown := [name for name in values if name not in hints]:
        known = ", ".join(path + name for name in hints)
        raise ValueError(f"unknown setting {path}{unknown[0]!s:.60}; there are {known}")
    made = {}
    for name, hint in hints.items():
        if name not in values:
            if not hasattr(schema, name):  # it has no default
                raise ValueError(f"{path}{name} is missing")
        elif isinstance(hint, type) and is_dataclass(hint):
            made[name] = from_dict(hint, values[name], f"{path}{name}.")
        else:
            made[name] = check_value(f"{path}{name}", values[name], hint)
    return schema(**made)


def flatten(node: dict[str, Any], path: str = "") -> dict[str, Any]:
    """{dotted key: value} of nested dicts."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{path}{key}.")
        else:
            flat[f"{path}{key}"] = value
    return flat


@cache
def signature(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(constructor).parameters


def config_options(
    constructor: Callable[..., Any], shared: dict[str, Any]
) -> dict[str, inspect.Parameter]:
    """The parameters that a config may set: not those that the parent shares or the kind has
    fixed."""
    fixed = constructor.keywords if isinstance(constructor, partial) else {}
    return {name: p for name, p in signature(constructor).items() if name not in {*shared, *fixed}}


def construct(
    name: str, constructor: Callable[..., Any], options: dict[str, Any], shared: dict[str, Any]
) -> Any:
    """constructor(**options), and those of the shared values that it has a parameter for."""
    known = config_options(constructor, shared)
    arguments = {key: value for key, value in shared.items() if key in signature(constructor)}
    for option, value in options.items():
        if option not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"{name} has no option {option!r}; its options are: {names}")
        arguments[option] = check_value(f"{name}: {option}", value, known[option].annotation)
    required = [key for key, p in known.items() if p.default is inspect.Parameter.empty]
    if missing := [key for key in required if key not in options]:
        raise ValueError(f"{name} needs a value for {', '.join(missing)}")
    try:
        return constructor(**arguments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def build(
    name: str,
    kinds: Mapping[str, Any],
    node: Any,
    shared: dict[str, Any],
    needs: str | None = None,
) -> Any:
    """kinds[node["kind"]] with its other options. needs: only kinds that take this shared value."""
    options = dict(node)
    kind = options.pop("kind", None)
    names = [k for k in kinds if needs is None or needs in signature(kinds[k])]
    if kind not in names:
        raise ValueError(f"{name}.kind is {kind!r:.60}; choose one of: {', '.join(names)}")
    return construct(f"{name} ({kind})", kinds[kind], options, shared)
