"""Target sizes."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from presize.errors import OptionError

MAX_SIDE = 16383
"""The longest side of a target, in pixels: WebP's format ends there, JPEG's at 65535."""


class Size(NamedTuple):
    """A target size, (height, width) in pixels, with sides from 1 to MAX_SIDE; or KEEP."""

    height: int
    width: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``"256"`` is a square, ``"320x240"`` is width x height, as people write it, ``"keep"`` is KEEP.

        >>> Size.parse("256")
        Size(height=256, width=256)
        >>> Size.parse("320x240")
        Size(height=240, width=320)
        """
        if text.strip() == "keep":
            return cls(-1, -1)
        match = re.fullmatch(r"(\d{1,9})(?:[xX](\d{1,9}))?", text.strip(), re.ASCII)
        if not match:
            raise OptionError(f"size: expected N or WxH in pixels or keep, such as 256 or 320x240, got {text!r}")
        width = int(match[1])
        return cls(int(match[2] or width), width)

    def __str__(self) -> str:
        """The name of its folder when there are several: ``256``, ``320x240`` (width x height), or ``keep``."""
        if self == (-1, -1):
            return "keep"
        return str(self.height) if self.height == self.width else f"{self.width}x{self.height}"


KEEP = Size.parse("keep")
"""The target size that leaves each image at its own."""


def size_words(size: Size | str) -> str:
    """``256 px``, or ``their own size`` for KEEP and its name."""
    return "their own size" if str(size) == "keep" else f"{size} px"
