"""Registry: plain data such as {kind: gqa, queries_per_kv: 2} becomes an object, each value checked by its annotation."""

import inspect
import math
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Bounds:
    """What a number may be: Annotated[float, Bounds(above=0)]."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def allow(self, value):
        return (
            self.least <= value <= self.most
            and (self.above < value or math.isinf(self.above))
            and (value < self.below or math.isinf(self.below))
        )

    def __str__(self):
        names = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
        given = {name: value for name, value in vars(self).items() if not math.isinf(value)}
        return " and ".join(f"{names[name]} {value:,}" for name, value in given.items())


Count = Annotated[int, Bounds(least=1)]
Positive = Annotated[float, Bounds(above=0)]
NonNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Ratio = Annotated[float, Bounds(above=0, below=1)]  # neither none nor all
Decay = Annotated[float, Bounds(least=0, below=1)]

NAMES = {NoneType: "null", float: "a number", int: "an integer", bool: "true or false", str: "a string"}


def matches(value, annotation):
    if get_origin(annotation) is Annotated:
        base, limit = get_args(annotation)
        return matches(value, base) and (value in limit if isinstance(limit, tuple) else limit.allow(value))
    if annotation in (Any, inspect.Parameter.empty):
        return True
    if get_origin(annotation) in (list, dict):
        inner = get_args(annotation)[-1]
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, get_origin(annotation)) and all(matches(item, inner) for item in items)
    if options := get_args(annotation):
        return any(matches(value, option) for option in options)
    if annotation is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is annotation


def describe_type(annotation):
    if get_origin(annotation) is Annotated:
        base, limit = get_args(annotation)
        if isinstance(limit, tuple):
            return f"one of: {', '.join(str(choice).lower() for choice in limit)}"
        return f"{describe_type(base)} {limit}"
    if get_origin(annotation) in (list, dict):
        return "a list of strings" if get_origin(annotation) is list else "settings, one by one"
    kinds = get_args(annotation) or (annotation,)
    return " or ".join(describe_type(a) if get_args(a) else NAMES.get(a, a.__name__) for a in kinds)


def check_value(name, value, annotation):
    """The value, if its annotation allows it; 1e3 is an integer, too."""
    if isinstance(value, float) and value.is_integer() and not matches(value, annotation):
        value = int(value) if matches(int(value), annotation) else value
    if not matches(value, annotation):
        raise ValueError(f"{name} is {value!r:.60}; expected {describe_type(annotation)}")
    return value


def from_dict(schema, values, path=""):
    """A dataclass from plain data; keys that are unknown or missing are errors."""
    hints, made = get_type_hints(schema, include_extras=True), {}
    if not isinstance(values, dict):
        first = next(iter(hints))
        raise ValueError(f"{path[:-1]} is a group of settings; set one by its name: {path}{first}={values}")
    if unknown := [name for name in values if name not in hints]:
        raise ValueError(
            f"unknown setting {path}{unknown[0]}; there are {', '.join(path + n for n in hints)}"
        )
    for field in fields(schema):
        name, hint = field.name, hints[field.name]
        if name in values:
            value, full = values[name], f"{path}{name}"
            made[name] = (
                from_dict(hint, value, f"{full}.") if is_dataclass(hint) else check_value(full, value, hint)
            )
        elif field.default is MISSING:
            raise ValueError(f"{path}{name} is missing")
    return schema(**made)


@cache
def signature(constructor):
    return inspect.signature(constructor).parameters


def config_options(constructor, shared):
    """The parameters that a config may set: those that neither the parent shares nor the kind has fixed."""
    fixed = constructor.keywords if isinstance(constructor, partial) else {}
    return {name: p for name, p in signature(constructor).items() if name not in {*shared, *fixed}}


def construct(name, constructor, options, shared):
    """constructor(**options) with those shared values that it names."""
    known = config_options(constructor, shared)
    if unknown := [option for option in options if option not in known]:
        raise ValueError(
            f"{name} has no option {unknown[0]!r}; its options are: {', '.join(known) or 'none'}"
        )
    if missing := [o for o in known if known[o].default is inspect.Parameter.empty and o not in options]:
        raise ValueError(f"{name} needs a value for {', '.join(missing)}")
    options = {o: check_value(f"{name}: {o}", v, known[o].annotation) for o, v in options.items()}
    try:
        return constructor(**{n: v for n, v in shared.items() if n in signature(constructor)}, **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def build(name, kinds, node, shared, needs=None):
    """kinds[node["kind"]] with the node's other options. With `needs`, only kinds that take that shared value."""
    options = dict(node)
    kind = options.pop("kind", None)
    able = [k for k in kinds if needs in (None, *signature(kinds[k]))]
    if kind not in able:
        raise ValueError(f"{name}.kind is {kind!r:.60}; choose one of: {', '.join(able)}")
    return construct(f"{name} ({kind})", kinds[kind], options, shared)
