"""What a build could not store, and why: one line each in rejects.jsonl."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import NamedTuple

NOT_AN_IMAGE = "NotAnImageError"
"""The error of files that are no images and are not named like one: skipped, not counted as rejected."""

IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .tif .tiff .ppm .pgm .pbm .pnm .avif .jp2 .heic .heif .jxl".split()
)
"""Names that claim to be an image. They decide how a file that is none is counted, never what is stored."""


class Reject(NamedTuple):
    """A file that was not stored: its path from the source, the class of the error, and the reason."""

    path: str
    error: str
    reason: str


def claims_to_be_an_image(path: str) -> bool:
    """True when the name says so, whatever the file holds."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def to_jsonl(rejects: Iterable[Reject]) -> bytes:
    """rejects.jsonl: UTF-8, one JSON object a line, by path, so that the order in which they were met does not show."""
    lines = (json.dumps(reject._asdict(), ensure_ascii=False) + "\n" for reject in sorted(rejects))
    return "".join(lines).encode()
