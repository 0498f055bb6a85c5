"""A file that a build could not store, and why. Does not import pyarrow: worker processes use this module."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NOT_AN_IMAGE = "NotAnImageError"
"""Error of files that are skipped, not rejected: they are not images and are not named like one."""

IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .tif .tiff .ppm .pgm .pbm .pnm .avif .jp2 .heic .heif .hif .jxl "
    ".tga .ico .sgi .pcx .dds".split()
)
"""Suffixes of images. They decide whether a file that is not an image is rejected or skipped, never what is stored."""

IMAGE_NAMES = rf"(?i)({'|'.join(map(re.escape, sorted(IMAGE_SUFFIXES)))})$"

CRASH = "CrashError"
"""Error of files that crashed the process that decoded them."""

UNREADABLE = "UnreadableError"
"""Error of files that could not be read; later runs retry them."""

_COMPANION = "companion "


def of_companion(name: str) -> str:
    """Return the start of the reason for rejecting a sample for a companion; it has no path, so reports group it."""
    return f"{_COMPANION}{name}"


BOXES = "boxes"
"""Start of the reason for rejecting an image for its boxes in the label table."""


MAY_PASS = (_COMPANION, f"{BOXES}:")
"""Starts of reasons that do not depend only on an image's content: updates retry such files and MAY_PASS_ERRORS."""

MAY_PASS_ERRORS = (UNREADABLE, CRASH)


LEFT_OUT = {"skipped": "not images", "hidden": "hidden", "outside": "outside class folders"}
"""Words for files that a build did not try to store, by the name of their count."""


def left_out_text(counts: Mapping[str, int]) -> str:
    """Return, for example, "3 not images, 75 outside class folders"; empty for none."""
    return ", ".join(f"{counts[name]:,} {words}" for name, words in LEFT_OUT.items() if counts[name])


class Reject(NamedTuple):
    """A file that was not stored: its path in the source, the class and message of the error, and, if it was rejected
    for its content, its size and modification time."""

    path: str
    error: str
    reason: str
    source_nbytes: int | None = None
    source_mtime_ns: int | None = None

    def known(self) -> dict[str, Any]:
        return {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}


def claims_to_be_an_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES
