"""rejects.jsonl: the files that a build could not store, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from presize.errors import DatasetError

NOT_AN_IMAGE = "NotAnImageError"
"""The error of files that are not images and are not named like one: they are skipped, not rejected."""

IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .bmp .webp .tif .tiff .ppm .pgm .pbm .pnm .avif .jp2 .heic .heif .hif .jxl "
    ".tga .ico .sgi .pcx .dds".split()
)
"""Suffixes of names that claim to be an image. They decide whether a file that is none counts as rejected or as
skipped, never what is stored."""


_CRASH = "CrashError"
_COMPANION = "companion "
_UNREAD = ("cannot be read", "it changed during the build", _COMPANION)


def of_companion(name: str) -> str:
    """How the reason begins of a sample that is rejected for a companion. It names no path, so that reports count such
    samples together."""
    return f"{_COMPANION}{name}"


BOXES = "boxes"
"""How the reason of an image begins that was rejected for its boxes in the label table, and not for its content."""


def may_pass(error: str, reason: str) -> bool:
    """True when a file was not rejected for its content alone: the next time, or on another machine, it may be stored;
    as it may with another companion.

    Args:
        error: the class of the error.
        reason: the message of the error.
    """
    return error == _CRASH or reason.startswith((*_UNREAD, f"{BOXES}:"))


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
        return {name: value for name, value in self._asdict().items() if value is not None}


def claims_to_be_an_image(path: str) -> bool:
    """True when the name has the suffix of an image format, whatever the content."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def to_jsonl(rejects: Iterable[Reject]) -> bytes:
    """The content of rejects.jsonl: UTF-8, one JSON object per line, sorted by path and so independent of --jobs."""
    lines = (
        json.dumps(reject.known(), ensure_ascii=False)
        for reject in sorted(rejects, key=lambda reject: [(value is not None, value) for value in reject])
    )
    return "".join(f"{line}\n" for line in lines).encode()


def read_rejects(path: Path) -> list[Reject]:
    """The lines of a rejects.jsonl, of earlier versions as well. Raises DatasetError when a line is invalid."""
    try:
        return [_reject(json.loads(line)) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; copy or build the dataset again") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"a line has no {error}" if isinstance(error, KeyError) else error
        raise DatasetError(f"{path} is damaged: {reason}; copy or build the dataset again") from None


def _reject(line: dict[str, object]) -> Reject:
    texts = [line[name] for name in ("path", "error", "reason")]
    counts = [line.get(name) for name in ("source_nbytes", "source_mtime_ns")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a line has no path, error and reason")
    str(texts[0]).encode()  # raises for lone surrogates
    if not all(type(count) is int and -(2**63) <= count < 2**63 for count in counts):
        counts = [None, None]
    return Reject(*texts, *counts)  # type: ignore[arg-type]
