"""The facts of this machine, gathered; and findings as text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from presize.doctor.codec_features import read_codecs
from presize.doctor.facts import CheckUp, Finding, Level
from presize.doctor.findings import verdict
from presize.formatting import plural, printable
from presize.measure.read_speed import Reading, list_content, measure
from presize.system.machine import Torch, read_cpu, read_limits, read_nvidia, read_shared_memory
from presize.system.resources import max_open_shards, read_memory
from presize.system.storage import find_storage

_MOST_READERS = 16
"""Enough to keep any disk busy; with more, Python is what is measured."""


def check_up(torch: Torch | str, path: Path | None = None) -> CheckUp:
    """Gather the facts of this machine. Takes a few seconds; nothing is written.

    Args:
        torch: presize.datasets.timing.devices.read_torch(), or why torch cannot be imported.
        path: A dataset, a folder of images or a file. Some of it is read, to measure how fast that is. None looks at
            the storage of the current folder and reads nothing.

    Raises:
        DatasetError: `path` does not exist.
    """
    cpu = read_cpu()
    content = None
    reading: Reading | str | None = None
    if path is not None:
        content = list_content(path)
        try:
            reading = measure(content, max(1, min(_MOST_READERS, int(cpu.usable))))
        except OSError as error:
            name = os.fsencode(error.filename or path).decode("utf-8", "backslashreplace")
            reading = f"{name}: {error.strerror}"
    return CheckUp(
        cpu, read_memory(), read_shared_memory(), read_limits(), max_open_shards(), read_codecs(), read_nvidia(), torch,
        find_storage(path or Path()), content, reading,
    )  # fmt: skip


def as_text(findings: Sequence[Finding], width: int = 100) -> str:
    """The verdict, then what to fix, then the rest, in lines of at most `width` characters where words allow it.
    Unprintable characters are escaped."""
    worst_first = [finding for level in ("bad", "warn") for finding in findings if finding.level == level]
    others = [finding for finding in findings if finding.level not in ("bad", "warn")]
    level_width = max(map(len, get_args(Level)))
    topic_width = max((len(finding.topic) for finding in findings), default=0)
    indent = level_width + topic_width + 4
    lines = [_verdict_line(findings)]
    for group in (worst_first, others):
        lines += [""] if group else []
        for finding in group:
            head = f"{finding.level:{level_width}}  {finding.topic:{topic_width}}  "
            lines += _wrapped(head, finding.found, indent, width)
            if finding.fix:
                lines += _wrapped(" " * indent + "-> ", finding.fix, indent + 3, width)
    return "\n".join(lines)


def _verdict_line(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in get_args(Level)}
    if verdict(findings) == "ok":
        return "No problems found."
    problems = [f"{counts['bad']} bad"] * bool(counts["bad"])
    problems += [plural(counts["warn"], "warning")] * bool(counts["warn"])
    return f"Found {' and '.join(problems)}; {counts['ok']} ok."


def _wrapped(head: str, text: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(
        printable(text), max(width, indent + 30), initial_indent=head, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip
