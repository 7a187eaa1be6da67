"""Registry: plain data such as {kind: gqa, queries_per_kv: 2} becomes an object, checked by
annotations."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from configs.describe import LARGEST, UNIONS, describe

Kind = TypeVar("Kind")


class Bounds(NamedTuple):
    """The range of a number: Annotated[float, Bounds(above=0)]."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def allow(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below


Natural = Annotated[int, Bounds(least=0, most=LARGEST)]
Count = Annotated[int, Bounds(least=1, most=LARGEST)]
Positive = Annotated[float, Bounds(above=0)]
NonNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Ratio = Annotated[float, Bounds(above=0, below=1)]  # neither none nor all
BelowOne = Annotated[float, Bounds(least=0, below=1)]
UpToOne = Annotated[float, Bounds(above=0, most=1)]


class Registry(dict[str, Kind]):
    """The kinds of a part, by name; a name cannot be reused."""

    def __setitem__(self, name: str, kind: Kind) -> None:
        if name in self:
            raise ValueError(f"{name!r} is the name of another kind; choose a new one")
        super().__setitem__(name, kind)


def matches(value: Any, annotation: Any) -> bool:
    """Whether a value fits an annotation. The contents of lists and dicts are not checked."""
    if annotation in (Any, inspect.Parameter.empty):
        return True
    base = get_origin(annotation)
    inner = get_args(annotation)
    if base is Annotated:
        plain, bounds = inner
        return matches(value, plain) and bounds.allow(value)
    if base is Literal:
        return value in inner
    if base in UNIONS:
        return any(matches(value, option) for option in inner)
    if annotation is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is (base or annotation)


def check_value(name: str, value: Any, annotation: Any) -> Any:
    """Return the value if its annotation allows it; 1e3 also passes as an integer."""
    if isinstance(value, dict) and is_dataclass(annotation):
        return construct(f"{name}.", annotation, value)  # type: ignore[arg-type]
    if matches(value, annotation):
        return value
    if isinstance(value, float) and value.is_integer() and matches(int(value), annotation):
        return int(value)
    raise ValueError(f"{name} is {value!r:.60}; expected {describe(annotation, name)}")


@cache
def parameters_of(constructor: Callable) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor, except those that a partial has fixed."""
    fixed = constructor.keywords if isinstance(constructor, partial) else {}
    parameters = inspect.signature(constructor).parameters
    return {name: parameters[name] for name in parameters if name not in fixed}


def construct(path: str, constructor: Callable, options: dict, shared: Mapping = {}) -> Any:
    """constructor(**options), for example of a dataclass, plus those shared values for which it
    has parameters. Shared values, such as d_model, are the caller's: no option can set them. So
    with {"d_model": 64, "layer": 0}, MLP(d_model, expansion) gets a d_model, and no layer. The
    path, such as "train." or "optimizer (muon): ", precedes the name of an option in messages."""
    parameters = parameters_of(constructor)
    arguments = {name: shared[name] for name in parameters if name in shared}
    known = {name: parameters[name] for name in parameters if name not in shared}
    # an unknown setting that is null is ignored: an older run may have one that no longer exists
    if unknown := [name for name in options if name not in known and options[name] is not None]:
        names = ", ".join(known) or "none"
        raise ValueError(f"unknown setting {path}{unknown[0]}; the known ones are: {names}")
    for name, parameter in known.items():
        if name in options:
            arguments[name] = check_value(f"{path}{name}", options[name], parameter.annotation)
        elif parameter.default is parameter.empty:
            raise ValueError(f"{path}{name} is missing")
    try:
        return constructor(**arguments)
    except ValueError as error:
        error.args = (f"{path}{error}",)  # keeps its exit code
        raise


def build(name: str, kinds: Mapping, node: Any, shared: Mapping = {}) -> Any:
    """Build kinds[node["kind"]] with its other options."""
    options = dict(node)
    kind = options.pop("kind", None)
    if kind not in [*kinds]:  # it may be a list, which no dict can look up
        raise ValueError(f"{name}.kind is {kind!r:.60}; choose one of: {', '.join(kinds)}")
    return construct(f"{name} ({kind}): ", kinds[kind], options, shared)
