"""What it costs a build that one image cannot end it: a deadline and a turnstile around each, beside making its record.

    python benchmarks/building/guards.py PHOTOS

One process, from memory, CPU time; the two take turns within each round. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.build.tasks.records import Containment, Guard
from presize.codecs import transcode
from presize.errors import ImageError
from presize.options import ImageOptions
from shared import measuring, rates
from shared.conditions import conditions, find_photos


def microseconds(do: Callable[[bytes], object], images: list[bytes]) -> float:
    """CPU time per image."""
    start = time.process_time()
    for image in images:
        do(image)
    return (time.process_time() - start) / len(images) * 1e6


def make(image: bytes) -> None:
    try:
        transcode.transcode(image, ImageOptions())
    except ImageError:
        pass


def summary(rows: list[rates.Row]) -> str:
    made, guarded = (rates.column(rows, column) for column in ("make_us", "guard_us"))
    shares = [100 * cost / whole for cost, whole in zip(guarded, made, strict=True)]
    lines = [[f"{median(made):.0f}", f"{median(guarded):.2f}", f"{median(shares):.2f} %"]]
    header = ["making a record, µs", "guarding it, µs", "share"]
    return f"{rates.table(header, lines)}\n\n{rates.rounds(rows)}, {rates.machine(rows[0])}."


def measure_all(options: argparse.Namespace) -> None:
    photos = find_photos(options.source)
    facts = conditions(photos)
    images = [path.read_bytes() for path in photos[: options.images]]

    def run() -> Iterator[measuring.Columns]:
        with tempfile.TemporaryFile() as file:
            guard = Guard(Containment(timeout_s=300, turnstile=file.fileno()))

            def nothing(_: bytes) -> None:
                with guard:
                    pass

            guarded = microseconds(nothing, images * 10)
        yield {"images": len(images), "make_us": round(microseconds(make, images), 1), "guard_us": round(guarded, 3)}

    measuring.in_rounds({"guards": run}, options, facts, progress="guard_us")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--images", type=int, default=400, help="at most")
    measuring.run(arguments, measure_all, summary, minutes=1)


if __name__ == "__main__":
    main()
