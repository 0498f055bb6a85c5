"""presize doctor: look at this machine, and say what was found as text."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from presize.doctor.codec_features import read_codecs
from presize.doctor.findings import CheckUp, Finding, Level, verdict
from presize.measure.read_speed import Reading, list_content, measure
from presize.store.shard import max_open_shards
from presize.system.machine import Torch, read_cpu, read_limits, read_nvidia, read_shared_memory
from presize.system.resources import read_memory
from presize.system.storage import find_storage

_MOST_READERS = 16
"""Many enough to keep any disk busy; with more it is Python that is measured."""


def check_up(torch: Torch | str, path: Path | None = None) -> CheckUp:
    """Gather the facts. `path` is a dataset, a folder of images or a file: some of it is read, within a few seconds.
    Without it the storage is that of the current folder, and nothing is read. Nothing is written.

    torch: presize.datasets.timing.devices.read_torch(), or why there is none.
    Raises DatasetError when there is no `path`.
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
    """The verdict, what is to be done, and then what is well, each as a row of its level, topic and text, in lines of
    at most `width` characters where words allow it. Plain text: what is unprintable is escaped."""
    worst_first = [finding for level in ("bad", "look") for finding in findings if finding.level == level]
    others = [finding for finding in findings if finding.level not in ("bad", "look")]
    level_width = max(map(len, get_args(Level)))
    topic_width = max((len(finding.topic) for finding in findings), default=0)
    indent = level_width + topic_width + 4
    lines = [_verdict_line(findings)]
    for group in (worst_first, others):
        lines += [""] if group else []
        for finding in group:
            head = f"{finding.level:{level_width}}  {finding.topic:{topic_width}}  "
            lines += _wrapped(head, finding.found, indent, width)
            if finding.cure:
                lines += _wrapped(" " * indent + "-> ", finding.cure, indent + 3, width)
    return "\n".join(lines)


def _verdict_line(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in get_args(Level)}
    if verdict(findings) == "ok":
        return "Nothing was found that holds loading back."
    bad, look = f"{counts['bad']} bad", f"{counts['look']} worth a look"
    found = " and ".join(([bad] if counts["bad"] else []) + ([look] if counts["look"] else []))
    return f"Found {found}; {counts['ok']} are well."


def _wrapped(head: str, text: str, indent: int, width: int) -> list[str]:
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return textwrap.wrap(
        plain, max(width, indent + 30), initial_indent=head, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip
