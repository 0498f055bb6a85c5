"""Facts of a machine -> findings: what decides loading speed, whether it is good, and what to do about it. Pure.

Each topic is a function of the facts: machine_findings, codec_findings, gpu_findings, storage_findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from presize.doctor.codec_findings import jpeg_finding, opencv_finding, pillow_finding, resizer_finding
from presize.doctor.facts import CheckUp, Finding, Level
from presize.doctor.gpu_findings import gpu_decoder_finding, gpu_finding, torch_finding
from presize.doctor.machine_findings import (
    cores_finding,
    cpu_finding,
    locked_memory_finding,
    memory_finding,
    open_files_finding,
    shared_memory_finding,
)
from presize.doctor.storage_findings import fits_finding, reading_finding, storage_finding

_TOPICS: Sequence[Callable[[CheckUp], Finding | None]] = (
    cpu_finding,
    cores_finding,
    memory_finding,
    shared_memory_finding,
    open_files_finding,
    locked_memory_finding,
    jpeg_finding,
    resizer_finding,
    pillow_finding,
    opencv_finding,
    torch_finding,
    gpu_finding,
    gpu_decoder_finding,
    storage_finding,
    reading_finding,
    fits_finding,
)
"""In the order in which they are shown."""


def judge(facts: CheckUp) -> list[Finding]:
    """One finding for each topic, always in the same order; those on a path only if one was given."""
    return [finding for topic in _TOPICS if (finding := topic(facts))]


def verdict(findings: Iterable[Finding]) -> Level:
    """The worst level among `findings`; "unknown" counts as "ok"."""
    levels = {finding.level for finding in findings}
    return "bad" if "bad" in levels else "warn" if "warn" in levels else "ok"
