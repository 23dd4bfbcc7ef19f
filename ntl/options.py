"""Options: each is declared once, as a field of a dataclass, with type, default, range, meaning, and place in the id.

    @dataclass
    class TrainSettings:
        steps: int = option(1800, "optimizer updates", at_least=1)
        workers: int = option(0, "processes that load batches", at_least=0, identity=False)

The configuration, the checks before a run, a run's identity and the documentation all read these declarations.
Nothing here imports torch, so that a wrong value is reported without loading it. See `declaration` for classes that do.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, get_args, get_origin

from ntl.text import nearest, suggestion

_KEY = "option"
REQUIRED: Any = type("Required", (), {"__repr__": lambda self: "REQUIRED"})()  # in place of a default


@dataclass(frozen=True)
class Option:
    """One declared option.

    Attributes:
        hint: its type.
        default: REQUIRED where a value must be given.
        meaning: one line for people.
        at_least, above, at_most, below: bounds of a number; None where there is none.
        choices: the values that it may have; empty where any value in its range is valid.
        identity: whether it can change what a run computes.
    """

    name: str
    hint: Any = Any
    default: Any = REQUIRED
    meaning: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    identity: bool = True

    def expected(self) -> str:
        """Return what a valid value is, in words."""
        if self.choices:
            allowed = [str(c).lower() if isinstance(c, bool) else str(c) for c in self.choices]
            return " or ".join(allowed) if len(allowed) < 3 else f"one of {', '.join(allowed)}"
        limits = [
            f"{word} {bound:g}"
            for word, bound in (
                ("of at least", self.at_least),
                ("above", self.above),
                ("of at most", self.at_most),
                ("below", self.below),
            )
            if bound is not None
        ]
        kind, optional, _ = described(self.hint).partition(" or null")
        return " ".join(filter(None, (kind, " and ".join(limits)))) + optional

    def accepts(self, value: Any) -> bool:
        """Return whether `value` has the type of this option and lies in its range."""
        if not fits(value, self.hint):
            return False
        if value is None:
            return True
        if self.choices and value not in self.choices:
            return False
        if isinstance(value, bool) or not isinstance(value, Real):
            return True
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


class OptionError(ValueError):
    """A value that an option cannot have; the text names the option, the value, and what is expected."""


def option(
    default: Any = MISSING,
    meaning: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Iterable[Any] = (),
    identity: bool = True,
) -> Any:
    """Declare an option as a field of a dataclass; see `Option` for the arguments.

    Args:
        factory: makes the default, where that is a list or a mapping.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    declared = {"meaning": meaning, **bounds, "choices": tuple(choices), "identity": identity}
    given = {"default": default} if factory is None else {"default_factory": factory}
    return dataclasses.field(**given, metadata={_KEY: declared})


def redeclared(cls: type, name: str, default: Any) -> Any:
    """Declare an option of a base class again in a subclass, with another default."""
    (field,) = (field for field in dataclasses.fields(cls) if field.name == name)
    return dataclasses.field(default=default, metadata=field.metadata)


@cache
def options_of(cls: type) -> Mapping[str, Option]:
    """Return the options that a dataclass declares, by name; plain fields are options without a range."""
    hints = typing.get_type_hints(cls)
    found = {}
    for item in dataclasses.fields(cls):
        if not item.init:
            continue
        default = item.default if item.default_factory is MISSING else item.default_factory()
        default = REQUIRED if default is MISSING else default
        found[item.name] = Option(item.name, hints[item.name], default, **item.metadata.get(_KEY, {}))
    return types.MappingProxyType(found)


def check(settings: Any, where: str = "") -> None:
    """Raise an OptionError for the first option of a dataclass's instance that has a value it cannot have.

    Args:
        where: the node that the options belong to, such as "train"; named in the error.
    """
    for name, declared in options_of(type(settings)).items():
        check_value(declared, getattr(settings, name), where)


def check_value(declared: Option, value: Any, where: str = "") -> None:
    """Raise an OptionError unless `value` is valid for the option."""
    if not declared.accepts(value):
        key = f"{where}.{declared.name}" if where else declared.name
        close = nearest(value, map(str, declared.choices))
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise OptionError(f"{key}: got {value!r}, expected {declared.expected()}{hint}")


def check_node(node: Mapping[str, Any], where: str, also: Iterable[str] = ()) -> None:
    """Check the options of a configuration node, and of the nodes in it, against what its `_target_` declares.

    Args:
        where: the node's dotted key, such as "loss"; named in errors.
        also: keys that the node may have beside `_target_`, `name` and the declared options.

    Raises:
        OptionError: an unknown option (with the nearest), or a value that an option cannot have.
        ValueError: there is no class called `_target_`.
    """
    cls = declaration(node["_target_"])
    declared = options_of(cls) if cls else {}
    for name, one in declared.items():
        if one.default is REQUIRED and name not in node:
            raise OptionError(f"{where}.{name}: expected {one.expected()}, got none; it has no default")
    for key, value in node.items():
        if key in declared:
            check_value(declared[key], value, where)
        elif key not in ("_target_", "name", *also):
            owner = node["_target_"].rpartition(".")[2]
            raise OptionError(f"unknown key '{where}.{key}' of {owner}; {suggestion(key, (*declared, *also))}")
        if isinstance(value, Mapping) and "_target_" in value and key in also:
            check_node(value, f"{where}.{key}")
    if cls and not node["_target_"].endswith(f".{cls.__name__}"):  # an `Options`, which checks what goes together
        cls(**{key: value for key, value in node.items() if key in declared})


def declared_by(target: str) -> Mapping[str, Option]:
    """Return the options of the class with the dotted name `target`, by name; none if it declares none."""
    cls = declaration(target)
    return options_of(cls) if cls else {}


@cache
def declaration(target: str) -> type | None:
    """Return the dataclass that declares the options of the class with the dotted name `target`, if there is one.

    It is the class itself, or its attribute `Options`. A package whose classes load torch declares theirs in a module
    `options` that does not, as `<class>Options`: there it is looked for first.

    Raises:
        ValueError: there is no such class.
    """
    package, _, name = target.rpartition(".")
    try:
        in_package = importlib.import_module(f"{package}.options")
    except ImportError:
        in_package = None
    if cls := getattr(in_package, f"{name}Options", None):
        return cls
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"_target_ {target!r} cannot be imported ({error}). Correct it in conf/.") from error
    found = getattr(found, "Options", found)
    return found if dataclasses.is_dataclass(found) else None


def defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of a dataclass's options by name, those without one left out."""
    return {name: one.default for name, one in options_of(cls).items() if one.default is not REQUIRED}


def described_options(declared: Mapping[str, Option], prefix: str = "") -> Iterator[str]:
    """Yield for each option a line `name=default`, and below it what it means and which values it may have."""
    for name, one in declared.items():
        default = "" if one.default is REQUIRED else as_yaml(one.default)
        yield f"  {prefix}{name}={default}"
        expected = one.expected() + ("" if one.identity else "; not part of a run's identity")
        yield textwrap.fill(
            f"{one.meaning} ({expected})" if one.meaning else expected,
            width=110,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
        )


def as_yaml(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_yaml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {as_yaml(item)}' for key, item in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value from a yaml file has the type of a hint.

    A truth value is not a number, a number must be finite, and a text must not be empty.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin in (Sequence, Iterable, list, tuple):
        single = origin is Sequence and isinstance(value, str)  # one name stands for a list of one
        return single or (isinstance(value, list | tuple) and all(fits(item, parts[0]) for item in value))
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(fits(item, parts[1]) for item in value.values())
    if hint is str:
        return isinstance(value, str) and bool(value.strip())
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, type(None) if hint is None else hint)


def described(hint: Any) -> str:
    """Return a type hint in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(described, parts))
    if origin in (Sequence, Iterable, list, tuple):
        return f"a list, each {described(parts[0])}"
    if origin in (dict, Mapping):
        return "a mapping" if parts[1] is Any else f"a mapping, each value {described(parts[1])}"
    words = {
        Any: "any value",
        str: "a text",
        float: "a finite number",
        int: "an integer",
        bool: "true or false",
        type(None): "null",
    }
    return words.get(hint, str(hint))
