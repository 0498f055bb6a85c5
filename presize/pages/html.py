"""The templates of all pages (jinja2, autoescape on, filters for names, sizes and counts), and their thumbnails."""

from __future__ import annotations

import base64
import functools
import importlib.resources
from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
import simplejpeg

from presize.codecs import resize, sixteen
from presize.formatting import plural, printable, size_text
from presize.options import Size


@functools.cache
def asset(name: str) -> str:
    """Return the text of a file in the folder of templates."""
    return (importlib.resources.files("presize.pages") / "templates" / name).read_text("utf-8")


@functools.cache
def template(name: str) -> jinja2.Template:
    """Return a template. Rendering it escapes all text."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters.update(
        name=printable, size=size_text, count=plural, image=_data_uri, inf=lambda value: value == float("inf")
    )
    return environment.get_template(name)


def _data_uri(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


Pixels = npt.NDArray[np.uint8]


def thumbnail(pixels: Pixels, side: int) -> Pixels:
    """Resize uint8 (height, width, 3) or (height, width), antialiased, so that no side is longer than `side`."""
    target = resize.target(Size(*pixels.shape[:2]), Size(side, side), "longer", upscale=False)
    return resize.resize(pixels, target, "bilinear", "presize")


def flattened(pixels: npt.NDArray[Any], background: int) -> Pixels:
    """Return pixels as uint8 (height, width, 3) or (height, width), with alpha composited on grey of `background`."""
    if pixels.dtype == np.uint16:
        pixels = sixteen.rounded(pixels)
    if pixels.shape[2:] == (4,):
        opacity = pixels[:, :, 3:] / 255
        pixels = (pixels[:, :, :3] * opacity + background * (1 - opacity)).round().astype(np.uint8)
    return np.asarray(pixels)


def jpeg_of(pixels: Pixels, quality: int = 80, subsampling: str = "420") -> bytes:
    """Encode uint8 (height, width, 3) RGB or (height, width) grey as a JPEG."""
    if pixels.ndim == 2:
        return bytes(simplejpeg.encode_jpeg(pixels[:, :, np.newaxis], quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", subsampling))


def notebook_html(
    title: str, facts: Sequence[str] = (), rows: Sequence[tuple[str, str]] = (), cards: Sequence[Any] = ()
) -> str:
    """Return HTML for a notebook: a title, facts in sentences, a table, and cards (presize.pages.samples.Card)."""
    return template("notebook.html").render(title=title, facts=facts, rows=rows, cards=cards)
