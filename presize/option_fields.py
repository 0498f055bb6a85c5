"""Dataclass fields that state an option once: the command line, the checks and the documentation read them."""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from presize.errors import OptionError

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Statement:
    """Description of an option. --help prints `help`, and `unset` for a default of None; the Python reference adds
    `detail`. `flag` is "" for ``--`` and the name of the field, None for no flag; `low` and `high` are the limits of a
    whole number, both allowed; `parse` reads a value from text; shells complete the value as a path if `is_path`."""

    help: str
    detail: str = ""
    flag: str | None = ""
    metavar: str | None = None
    unset: str = ""
    low: int = 0
    high: int = 2**63 - 1
    parse: Callable[[str], Any] | None = None
    is_path: bool = False


def option(default: Any, help: str, detail: str = "", **settings: Any) -> Any:
    """Return a dataclass field that states an option; `settings` are further attributes of Statement."""
    return dataclasses.field(default=default, metadata={"option": Statement(help, detail, **settings)})


class StatedOption(NamedTuple):
    """An option as stated by a dataclass. `kind` is the type of its value, or of each value if it `is_several`."""

    name: str
    kind: Any
    is_several: bool
    choices: tuple[Any, ...]
    default: Any
    statement: Statement

    @property
    def flag(self) -> str:
        return self.statement.flag or f"--{self.name.replace('_', '-')}"


@cache
def stated_options(options: type) -> tuple[StatedOption, ...]:
    hints = get_type_hints(options)
    return tuple(
        StatedOption(field.name, *_kind(hints[field.name]), field.default, field.metadata["option"])
        for field in dataclasses.fields(options)
        if "option" in field.metadata
    )


def _kind(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return kind, is_several and choices of a type hint; of a union, those of its first type."""
    origin = get_origin(hint)
    if origin is Literal:
        return hint, False, get_args(hint)
    if origin is tuple:
        kind, _, choices = _kind(get_args(hint)[0])
        return kind, True, choices
    return _kind(get_args(hint)[0]) if origin in (Union, UnionType) else (hint, False, ())


def check_options(options: object, prefix: str = "") -> None:
    """Raise OptionError unless each stated option has its type, choice or range. Does not check strings and floats.
    `prefix`: start of the names in the messages."""
    for each in stated_options(type(options)):  # type: ignore[arg-type]  # mypy does not take classes for hashable
        value, name = getattr(options, each.name), prefix + each.name
        if value is None and each.default is None:
            continue
        if each.is_several and not isinstance(value, tuple):
            kind = getattr(each.kind, "__name__", "text")
            raise OptionError(f"{name}: expected a tuple of {kind}, got {value!r}")
        for item in value if each.is_several else (value,):
            if each.choices:
                check_choice(name, item, each.choices)
            elif each.kind is int:
                number = check_range(name, item, each.statement.low, each.statement.high)
                object.__setattr__(options, each.name, value if each.is_several else number)
            elif isinstance(each.kind, type) and each.kind not in (str, float):
                check_type(name, item, each.kind)


def documented(options: Class) -> Class:
    """Decorate a dataclass: add the statements of its fields to its docstring."""
    lines = [f"{options.__doc__ or ''}".rstrip(), "", "    Attributes:"]
    for field in dataclasses.fields(options):
        if (statement := field.metadata.get("option")) is not None:
            lines.append(f"        {field.name}: {statement.help}")
            lines += [f"            {statement.detail}"] * bool(statement.detail)
    options.__doc__ = "\n".join([*lines, "    "])
    return options


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise OptionError unless `value` is one of `choices`, a Literal or a tuple."""
    allowed = choices if isinstance(choices, tuple) else get_args(choices)
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise OptionError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def check_range(name: str, value: Any, low: int, high: int) -> int:
    """Return an integer of any type, such as numpy.int64, as an int. Raises OptionError unless low <= it <= high."""
    with suppress(TypeError):
        if not isinstance(value, bool) and low <= (number := operator.index(value)) <= high:
            return number
    raise OptionError(f"{name}: expected a whole number from {low} to {high}, got {value!r}")


def set_in_range(options: object, name: str, low: int, high: int) -> None:
    """Set a field of a frozen dataclass to the int that check_range() returns for it."""
    object.__setattr__(options, name, check_range(name, getattr(options, name), low, high))


def check_above_0(name: str, value: Any, expected: str = "a number above 0") -> None:
    """Raise OptionError unless `value` is a finite number above 0. `expected` describes it in the message."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise OptionError(f"{name}: expected {expected}, got {value!r}")


def check_text(name: str, value: str) -> None:
    """Raise OptionError unless `value` is valid Unicode: a command line may hold any bytes."""
    check_type(name, value, str)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{name}: expected UTF-8, got {value!r}") from None


def check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        is_options = dataclasses.is_dataclass(value) and not isinstance(value, type)
        got = type(value).__name__ if is_options else repr(value)
        raise OptionError(f"{name}: expected {kind.__name__}, got {got}")


def check_list(name: str, values: object, expected: str = "a list of names") -> None:
    """Raise OptionError unless `values` is an ordered collection of strings. A string would count as a list of its
    letters, and a set has a different order in each process."""
    if isinstance(values, str | bytes | set | frozenset) or not isinstance(values, Collection):
        raise OptionError(f"{name}: expected {expected}, got {values!r}")
    for value in values:
        check_type(name, value, str)


def check_function(name: str, value: object) -> None:
    """Raise OptionError unless `value` is None or can be called."""
    if value is not None and not callable(value):
        raise OptionError(f"{name}: expected a function, got {value!r}")


def check_each_once(name: str, values: tuple[object, ...], what: str = "value") -> None:
    """Raise OptionError if `values` has duplicates; `what` names one of them in the message."""
    if len(set(values)) < len(values):
        raise OptionError(f"{name}: expected each {what} once, got {', '.join(map(str, values))}")
