"""Checks of single values, each of which names the option, the value and what was expected."""

from __future__ import annotations

import math
from typing import Any, get_args

from presize.errors import OptionError


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise OptionError unless `value` is one of the Literal `choices`."""
    allowed = get_args(choices)
    if value not in allowed:
        raise OptionError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Raise OptionError unless `value` is a whole number from `low` to `high`, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise OptionError(f"{name}: expected a whole number from {low} to {high}, got {value!r}")


def check_above_0(name: str, value: float) -> None:
    """Raise OptionError unless `value` is a number above 0, and finite."""
    if not 0 < value < math.inf:
        raise OptionError(f"{name}: expected a number above 0, got {value!r}")


def check_text(name: str, value: str) -> None:
    """Raise OptionError unless `value` is Unicode: a command line may hold any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{name}: expected UTF-8, got {value!r}") from None


def check_type(name: str, value: object, kind: type) -> None:
    """Raise OptionError unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise OptionError(f"{name}: expected {kind.__name__}, got {value!r}")
