"""Options against the annotations of the class that takes them: what is of another type is named before any work."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from experiments.config.compose import ConfigurationError


def check_types(target: Any, arguments: Mapping[str, Any], where: str) -> None:
    """Raise a ConfigurationError for the first argument whose value is not as `target` annotates it.

    Args:
        target: a class; a truth value is no number here, and a number that is not finite is none.
        where: the node's key, such as "dataset".
    """
    called = target if "__dataclass_fields__" in vars(target) else target.__init__
    hints = typing.get_type_hints(called, include_extras=False)
    for name, value in arguments.items():
        if name in hints and not fits(value, hints[name]):
            raise ConfigurationError(f"{where}.{name}: got {value!r}, expected {spoken(hints[name])}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value from a yaml file is what a type hint says."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return fits(value, parts[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin in (Sequence, Iterable, list):
        alone = origin is Sequence and isinstance(value, str)  # one name stands for a list of one
        return alone or (isinstance(value, list | tuple) and all(fits(item, parts[0]) for item in value))
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(item, parts[1]) for item in value.values())
    if hint is str:
        return isinstance(value, str) and bool(value.strip())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, type(None) if hint is None else hint)


def spoken(hint: Any) -> str:
    """Return a type hint in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return spoken(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(spoken, parts))
    if origin in (Sequence, Iterable, list):
        return f"a list, each {spoken(parts[0])}"
    if origin in (dict, Mapping):
        return "a mapping" if parts[1] is Any else f"a mapping, each value {spoken(parts[1])}"
    words = {str: "a text", float: "a finite number", int: "an integer", bool: "true or false", type(None): "null"}
    return words.get(hint, str(hint))
