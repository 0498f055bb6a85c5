"""Measure a build's overheads per image: the watchdog against crashes, and the CRC-32 of the source or other hashes.

    python benchmarks/building/overheads.py PHOTOS

Runs in one process, from memory. All variants take turns within each round. Prints a table of CPU times; asserts
nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from zlib_ng import zlib_ng

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.builder.tasks.records import CrashPolicy, Watchdog
from presize.codecs import transcode
from presize.errors import ImageError
from presize.options import ImageOptions
from shared import measuring, rates
from shared.conditions import conditions, find_photos

_MAKING = "making the record"


def make(image: bytes) -> None:
    with suppress(ImageError):
        transcode.transcode(image, ImageOptions())


def only_watchdog(watchdog: Watchdog, _: bytes) -> None:
    with watchdog:
        pass


def microseconds(do: Callable[[bytes], object], images: list[bytes]) -> float:
    """Return the CPU time per image."""
    start = time.process_time()
    for image in images:
        do(image)
    return (time.process_time() - start) / len(images) * 1e6


def summary(rows: list[rates.Row]) -> str:
    making = rates.column(rates.select(rows, variant=_MAKING), "cpu_us")
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in sorted(rows, key=lambda row: -float(row["cpu_us"]))):
        found = rates.column(rates.select(rows, variant=variant), "cpu_us")
        shares = [100 * cost / whole for cost, whole in zip(found, making, strict=True)]
        lines.append([variant, rates.spread(found, ",.1f"), f"{rates.spread(shares, '.2f')} %"])
    first = rows[0]
    return "\n".join(
        [
            rates.table(["", "CPU µs per image", "of making the record"], lines),
            "",
            f"{rates.rounds(rows)}, 256 px, {first['images']} photographs of {first['mean_kb']} kB.",
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)[: options.images]
    facts = conditions(photos)
    images = [path.read_bytes() for path in photos]
    with tempfile.TemporaryFile() as file:
        watchdog = Watchdog(CrashPolicy(timeout_s=300, turnstile=file.fileno()))
        work: dict[str, Callable[[bytes], object]] = {
            _MAKING: make,
            "watchdog": partial(only_watchdog, watchdog),
            "CRC-32": zlib_ng.crc32,
            "SHA-256": hashlib.sha256,
            "BLAKE2b": hashlib.blake2b,
        }

        def run(variant: str) -> Iterator[measuring.Columns]:
            cost = microseconds(work[variant], images if variant == _MAKING else images * 10)
            yield {"variant": variant, "images": len(images), "cpu_us": round(cost, 3)}

        measuring.in_rounds({name: partial(run, name) for name in work}, options, facts, progress="cpu_us")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--images", type=int, default=400, help="maximal number of images")
    measuring.run(arguments, measure_all, summary, minutes=1)


if __name__ == "__main__":
    main()
