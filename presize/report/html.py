"""The templates of all pages: jinja2 with autoescape on, and filters for names, sizes and counts."""

from __future__ import annotations

import base64
import functools
import importlib.resources

import jinja2

from presize.formatting import plural, printable, size_text


@functools.cache
def asset(name: str) -> str:
    """One of the files beside the templates, as it is."""
    return (importlib.resources.files("presize.report") / "templates" / name).read_text("utf-8")


@functools.cache
def template(name: str) -> jinja2.Template:
    """One of the templates, ready to be rendered. Every text in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        name=printable, size=size_text, count=plural, image=_data_uri, inf=lambda value: value == float("inf")
    )
    return environment.get_template(name)


def _data_uri(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
