"""Companion: a second image of every sample."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from presize.errors import OptionError
from presize.options.checks import Color, Filter, Format, check_choice, check_text
from presize.options.image import ImageOptions


def companion_color(format: Format) -> Color:
    """How many channels a companion has that is stored as an image is: those of its source, where `format` has them."""
    return "rgb" if format == "webp" else "keep"


COMPANION_NAME = r"[A-Za-z][A-Za-z0-9_]{0,31}"
"""The names that companions may have, as a regular expression for ASCII."""

_FIELD = re.compile(r"\{\{|\}\}|\{(\w*)\}|[{}]", re.ASCII)

_FIELDS = ("stem", "dir", "name")


@dataclass(frozen=True)
class Companion:
    """A second image of every sample, such as a segmentation mask, with the geometry of the first.

    Attributes:
        name: of its shards and index columns.
        pattern: the path of its file, relative to the source: ``masks/{stem}.png``. ``{name}`` is the name of the
            image's file, ``{stem}`` the same without its suffix, ``{dir}`` its folder, ``{{`` and ``}}`` are braces.
        column: the column of the label table that holds the path, in place of `pattern`.
        format: what is stored.
        filter: "nearest" keeps the values of pixels exactly: those of grey images, of 16 bits, too, and the indices of
            palettes. With any other filter the companion is stored as an image is.
    """

    name: str
    pattern: str | None = None
    column: str | None = None
    format: Format = "png"
    filter: Filter = "nearest"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(COMPANION_NAME, self.name, re.ASCII):
            raise OptionError(f"pair: expected a name of at most 32 letters, digits and _, got {self.name!r}")
        if self.name == "source" or self.name.endswith("_source"):
            raise OptionError(f"pair: {self.name!r} would have columns that the index has already; choose another name")
        if (self.pattern is None) == (self.column is None):
            raise OptionError(
                f"pair: expected a pattern or a column for {self.name}, such as masks/{{stem}}.png, got "
                f"{'neither' if self.pattern is None else 'both'}"
            )
        if self.pattern is not None:
            check_text("pair", self.pattern)
            self.pieces()
            parts = self.pattern.split("/")
            if not self.pattern or parts[0] == "" or not {".", ".."}.isdisjoint(parts):
                raise OptionError(f"pair: expected a path from the source for {self.name}, got {self.pattern!r}")
        check_choice("pair_format", self.format, Format)
        check_choice("pair_filter", self.filter, Filter)
        if self.is_exact and self.format not in ("png", "raw"):
            raise OptionError(
                f"pair_format: {self.format} changes the values of pixels, which nearest keeps; choose png or raw, "
                f"or another filter for {self.name}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """``NAME=PATTERN``, or ``NAME=column:COLUMN``.

        >>> Companion.parse("mask=masks/{stem}.png").pattern
        'masks/{stem}.png'
        """
        name, equals, place = text.partition("=")
        if not equals:
            raise OptionError(f"pair: expected NAME=PATTERN, such as mask=masks/{{stem}}.png, got {text!r}")
        kind, colon, column = place.partition(":")
        return cls(name, column=column) if kind + colon == "column:" else cls(name, place)

    @property
    def is_exact(self) -> bool:
        """Whether the values of its pixels are kept."""
        return self.filter == "nearest"

    def pieces(self) -> list[tuple[str, str]]:
        """The pattern as pairs of literal text and the field that follows it, "" for none.

        >>> Companion("mask", "masks/{stem}.png").pieces()
        [('masks/', 'stem'), ('.png', '')]
        """
        pattern, pieces, literal, end = self.pattern or "", [], "", 0
        for match in _FIELD.finditer(pattern):
            literal += pattern[end : match.start()]
            end = match.end()
            if match[0] in ("{{", "}}"):
                literal += match[0][0]
            elif match[1] in _FIELDS:
                pieces.append((literal, match[1]))
                literal = ""
            else:
                raise OptionError(
                    f"pair: {match[0]} in {pattern!r} is none of {{stem}}, {{dir}} and {{name}}; "
                    "write {{ and }} for braces"
                )
        return [*pieces, (literal + pattern[end:], "")]

    def image_options(self, image: ImageOptions) -> ImageOptions:
        """How it is stored beside images of these options. The values of an exact one are kept whatever its color."""
        color = companion_color(self.format)
        return replace(image, format=self.format, filter=self.filter, color=color, depth=8, keep_metadata=False)

    def to_json(self) -> dict[str, str]:
        """Plain values for manifest.json, without the name."""
        place = {"column": self.column} if self.pattern is None else {"pattern": self.pattern}
        return {**place, "format": self.format, "filter": self.filter}  # type: ignore[dict-item]
