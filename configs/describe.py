"""Describe: which values an annotation allows, in words."""

from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

LARGEST = 2**63 - 1  # torch's largest integer; a bound that no message names
UNIONS = (Union, UnionType)  # of `Count | None`, `int | None`
NAMES = {
    NoneType: "null",
    float: "a number",
    int: "an integer",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a group of settings",
}


def range_of(bounds: Any) -> str:
    words = {"at least": bounds.least, "above": bounds.above}
    words |= {"at most": bounds.most, "below": bounds.below}
    return " and ".join(f"{word} {end:,}" for word, end in words.items() if abs(end) < LARGEST)


def describe(annotation: Any, name: str = "") -> str:
    """name: that of the setting, for the names of a group."""
    base = get_origin(annotation)
    inner = get_args(annotation)
    if is_dataclass(annotation):
        settings = ", ".join(f"{name}.{field.name}" for field in fields(annotation))
        return f"its settings one by one: {settings}"
    if base is Annotated:
        plain, bounds = inner
        return f"{describe(plain)} {range_of(bounds)}"
    if base is Literal:
        return " or ".join(map(str, inner))
    if base in UNIONS:
        return " or ".join(map(describe, inner))
    return NAMES.get(base or annotation, str(annotation))
