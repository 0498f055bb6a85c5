"""The click options of commands, made from the dataclasses that state them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import click

from presize.measure.bench_options import BenchOptions
from presize.option_fields import StatedOption, stated_options
from presize.options import SPELLINGS, BuildOptions, ImageOptions, RunOptions
from presize.system.files import expanded


class _Path(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return expanded(os.fsdecode(super().convert(value, param, ctx)))


PATH = _Path(readable=False)
"""Type of files, folders and URLs. Shells complete their names; it does not check that they exist."""
TYPED = "presize.typed"
"""Key of the click context's meta: the texts that `parsed` has read, by parameter name."""
FLAGS = {
    each.name: each.flag
    for options in (ImageOptions, BuildOptions, RunOptions, BenchOptions)
    for each in stated_options(options)
    if each.statement.flag
}
"""Command-line options that are not named like their parameters."""


class SpelledChoice(click.Choice):  # type: ignore[type-arg]  # in click 8.1 Choice is not generic
    """Choice that also accepts other spellings, such as jpg for jpeg, and returns the values of a Literal."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        super().__init__(list(map(str, values)))
        self._values = {str(value): value for value in values}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._values[super().convert(SPELLINGS.get(value, str(value)), param, ctx)]


def choice(literal: Any) -> SpelledChoice:
    return SpelledChoice(get_args(literal))


def parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a click callback that applies `parse` to the value of an option, or to each value if it has several."""

    def read(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        context.meta.setdefault(TYPED, {})[parameter.name] = value
        if isinstance(value, tuple):
            return tuple(map(parse, value))
        return None if value is None else parse(value)

    return read


def stated(options: type, *names: str) -> list[click.Option]:
    """Return the click options of the fields `names` of a dataclass; of all fields by default."""
    found = {each.name: each for each in stated_options(options) if each.statement.flag is not None}
    return [_click_option(found[name]) for name in names or found]


def _click_option(each: StatedOption) -> click.Option:
    statement, default, flag = each.statement, each.default, each.flag
    settings: dict[str, Any] = {"multiple": each.is_several, "metavar": statement.metavar, "help": statement.help}
    if each.choices:
        settings["type"] = SpelledChoice(each.choices)
    elif each.kind is bool:
        flag = f"{flag}/--no-{flag[2:]}" if default else flag
        settings |= {"is_flag": True, "metavar": None}
    else:
        settings["type"] = PATH if statement.is_path else each.kind if each.kind in (int, float) else str
    if statement.parse is not None:
        settings["callback"] = parsed(statement.parse)
    if statement.unset:
        settings["help"] += f"  [default: {statement.unset}]"
    elif default is not None and default is not False and default != ():
        settings |= {"default": list(map(str, default)) if each.is_several else default, "show_default": True}
    return click.Option([flag, each.name], **settings)


def given(options: type, values: dict[str, Any], **others: Any) -> Any:
    """Build the dataclass `options` from the typed `values`. `others`: fields that are not typed."""
    names = [each.name for each in stated_options(options) if each.statement.flag is not None]
    typed = {name: values[name] for name in names if values.get(name) not in (None, ())}
    return options(**typed | others)


def as_typed(options: BuildOptions) -> dict[str, Any]:
    """Return options as typed values, by parameter name of `presize build`."""
    owners = (options, options.image)
    values = {field.name: getattr(owner, field.name) for owner in owners for field in fields(owner)}
    companions = values.pop("companions")
    return values | {
        "companions": [f"{each.name}={each.pattern or f'column:{each.column}'}" for each in companions],
        "pair_format": [f"{each.name}={each.format}" for each in companions],
        "pair_filter": [f"{each.name}={each.filter}" for each in companions],
    }
