"""Plain data such as {kind: gqa, group: 2} becomes a module; an option the part does not take is refused."""

import inspect
import math
from functools import cache, partial
from typing import get_args


def require_above(least, **values):
    """Sizes and rates that are given must be larger."""
    for name, value in values.items():
        if value is not None and value <= least:
            raise ValueError(f"{name} must be above {least} and is {value}")


@cache
def signature(constructor):
    return inspect.signature(constructor).parameters


def own_options(constructor, shared):
    """The parameters a config may set: those that neither the parent shares nor the kind has fixed."""
    fixed = constructor.keywords if isinstance(constructor, partial) else {}
    return {name: p for name, p in signature(constructor).items() if name not in {*shared, *fixed}}


def fits(value, annotation):
    allowed = get_args(annotation) or (annotation,)
    if isinstance(value, bool):
        return bool in allowed
    if isinstance(value, float):
        return float in allowed and math.isfinite(value)
    return type(value) in allowed or (isinstance(value, int) and float in allowed)


def in_words(annotation):
    words = {type(None): "null", float: "a finite number", int: "a whole number", bool: "true or false"}
    words |= {str: "a word", list[str]: "a list of words"}
    kinds = (annotation,) if annotation in words else get_args(annotation) or (annotation,)
    return " or ".join(words.get(a, f"a {a.__name__}") for a in kinds)


def construct(name, constructor, options, shared):
    """constructor(**options), checked one by one, with the shared sizes it asks for."""
    own = own_options(constructor, shared)
    for option, value in options.items():
        if option not in own:
            raise ValueError(
                f"{name} takes no option {option!r}; its options are: {', '.join(own) or 'none'}"
            )
        if not fits(value, own[option].annotation):
            raise ValueError(f"{name}: {option} is {value!r}; expected {in_words(own[option].annotation)}")
    if missing := [o for o in own if own[o].default is inspect.Parameter.empty and o not in options]:
        raise ValueError(f"{name} needs a value for {', '.join(missing)}")
    taken = {size: value for size, value in shared.items() if size in signature(constructor)}
    try:
        return constructor(**taken, **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def build(name, kinds, node, shared, needs=None):
    """kinds[node["kind"]], made from the node's own options and those shared sizes its constructor names.
    Where something `needs` to be shared, only kinds that name it will do."""
    options = dict(node)
    kind = options.pop("kind", None)
    if kind not in list(kinds):  # a list or mapping, which has no hash, is no key of a dict
        raise ValueError(f"{name}.kind is {kind!r}; choose one of: {', '.join(kinds)}")
    able = [k for k in kinds if needs in (None, *signature(kinds[k]))]
    if kind not in able:
        raise ValueError(f"{name}.kind is {kind!r}, which takes no {needs}; choose one of: {', '.join(able)}")
    return construct(f"{name} ({kind})", kinds[kind], options, shared)
