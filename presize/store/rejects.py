"""A file that a build could not store, and why. Without pyarrow: workers reject files, too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NOT_AN_IMAGE = "NotAnImageError"
"""The error of files that are not images and are not named like one: they are skipped, not rejected."""

IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .tif .tiff .ppm .pgm .pbm .pnm .avif .jp2 .heic .heif .hif .jxl "
    ".tga .ico .sgi .pcx .dds".split()
)
"""Suffixes of names that claim to be an image. They decide whether a file that is none counts as rejected or as
skipped, never what is stored."""

IMAGE_NAMES = rf"(?i)({'|'.join(map(re.escape, sorted(IMAGE_SUFFIXES)))})$"
"""A regular expression for names that end with one of them."""

CRASH = "CrashError"
"""The error of files that ended the process which decoded them."""

UNREADABLE = "UnreadableError"
"""The error of files that could not be read: later runs of the same command try them again."""

_COMPANION = "companion "


def of_companion(name: str) -> str:
    """How the reason begins of a sample that is rejected for a companion. It names no path, so that reports count such
    samples together."""
    return f"{_COMPANION}{name}"


BOXES = "boxes"
"""How the reason of an image begins that was rejected for its boxes in the label table, and not for its content."""


MAY_PASS = (_COMPANION, f"{BOXES}:")
"""How the reasons begin of images that were not rejected for their content alone: an update tries them again, as it
does those with an error of MAY_PASS_ERRORS."""

MAY_PASS_ERRORS = (UNREADABLE, CRASH)
"""Errors that depend on the disk or the machine, and not on the content of a file."""


LEFT_OUT = {"skipped": "not images", "hidden": "hidden", "outside": "outside class folders"}
"""Words for files that a build did not try to store, by the names under which they are counted."""


def left_out_text(counts: Mapping[str, int]) -> str:
    """How many files were left out for each reason, as in "3 not images, 75 outside class folders"; empty for none."""
    return ", ".join(f"{counts[name]:,} {words}" for name, words in LEFT_OUT.items() if counts[name])


class Reject(NamedTuple):
    """A file that was not stored.

    Attributes:
        path: from the source.
        error: the class of the error.
        reason: the message of the error.
        source_nbytes: the size of the file; None unless it was rejected for its content.
        source_mtime_ns: its modification time; None likewise.
    """

    path: str
    error: str
    reason: str
    source_nbytes: int | None = None
    source_mtime_ns: int | None = None

    def known(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}


def claims_to_be_an_image(path: str) -> bool:
    """True when the name has the suffix of an image format, whatever the content."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES
