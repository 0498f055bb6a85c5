"""Findings on the storage of a path, and on what lies there. Pure."""

from __future__ import annotations

from presize.doctor.facts import CheckUp, Finding
from presize.formatting import plural, size_text
from presize.measure.read_speed import Content, Reading

_CORE_IMAGES_PER_S = 5000
"""256 px JPEGs from LMDB that one core reads and decodes: benchmarks/reading/results/read.csv (2026-11-25)."""

_CORE_FILES_PER_S = 700
_CORE_FILE_BYTES_PER_S = 40e6
"""Files that one core reads and decodes with torchvision: 660 a second of 256 px, 360 of 110 kB, in the same table."""

_BY_SHARDS = "read shard by shard: order=ShardShuffled(...) with readahead=True"


def storage_finding(facts: CheckUp) -> Finding:
    storage, reading = facts.storage, facts.reading
    if storage.file_system is None:
        return Finding("storage", "unknown", "its kind is not known here")
    found = f"{storage.described}; read-ahead {storage.window_bytes >> 10:,} KiB"
    measured = isinstance(reading, Reading) and reading.cold
    if storage.kind in ("network", "rotating") and not measured:
        return Finding("storage", "warn", f"{found}; slow in random order", _faster(facts))
    return Finding("storage", "ok", found)


def reading_finding(facts: CheckUp) -> Finding | None:
    content, reading = facts.content, facts.reading
    if content is None:
        return None
    if isinstance(reading, str):
        return Finding("reading", "bad", reading, "check the permissions, the disk (dmesg) and the mount")
    if not content.files:
        return Finding("reading", "unknown", "no files found; links are not followed")
    if reading is None:
        return Finding("reading", "unknown", f"{size_text(content.nbytes)} is too little to measure")
    what = "records" if content.shards else "files"
    found = (
        f"{_rounded(reading.random_reads_per_s)} {what}/s of {size_text(reading.record_bytes)} in random order "
        f"({plural(reading.readers, 'reader')}), {size_text(reading.sequential_bytes_per_s)}/s sequentially"
    )
    if facts.storage.kind == "memory":
        return Finding("reading", "ok", found)
    if not reading.cold:
        why = "the page cache keeps it" if reading.cold is False else "it may come from the page cache"
        again = "if it was just written, try again in a minute" if reading.cold is False else None
        return Finding("reading", "unknown", f"{found}, but {why}", again)
    found += ", cold"
    needed = reading.readers * _core_rate(content, reading)
    if reading.random_reads_per_s >= needed:
        return Finding("reading", "ok", found)
    found += f"; {plural(reading.readers, 'core')} can use about {_rounded(needed)}"
    return Finding("reading", "warn", found, _faster(facts))


def _faster(facts: CheckUp) -> str:
    """What to do about storage that is slow in random order."""
    content = facts.content
    if content is not None and not content.shards:
        return "presize build reads the files once and in order: put OUT on a local SSD"
    if content is not None and content.nbytes > facts.memory.available:
        return f"{_BY_SHARDS}, or copy it to a local SSD"
    return 'preload="page-cache" reads a dataset in order before training; or copy it to a local SSD'


def _core_rate(content: Content, reading: Reading) -> float:
    """Records or files per second that one core can decode."""
    if content.shards:
        return _CORE_IMAGES_PER_S
    return min(_CORE_FILES_PER_S, _CORE_FILE_BYTES_PER_S / max(1, reading.record_bytes))


def fits_finding(facts: CheckUp) -> Finding | None:
    content, available = facts.content, facts.memory.available
    if content is None or not content.files:
        return None
    more = "" if content.all_files else "more than "
    if content.nbytes <= available:
        fits = "fits into memory: later epochs need no disk"
        return Finding("size", "ok", f"{size_text(content.nbytes)}, {fits}") if content.all_files else None
    return Finding(
        "size", "warn", f"{more}{size_text(content.nbytes)}, does not fit into {size_text(available)} of memory",
        f"{_BY_SHARDS}, or build it smaller" if content.shards else "presize build makes it smaller",
    )  # fmt: skip


def _rounded(rate: float) -> str:
    """In two digits, as the next run will differ in the third."""
    return f"{float(f'{rate:.2g}'):,.0f}"
