"""How fast presize's own decoder of baseline JPEG is beside libjpeg-turbo: on photographs, and on what is stored.

    python benchmarks/baseline.py PHOTOS [--images 400] [--rounds 9]

One process, from memory, CPU time; the two take turns within each round. Writes results/baseline.csv and prints a
table: medians, and the ratios within a round. `--table FILE` prints that of a CSV.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import simplejpeg
from conditions import conditions, find_photos

from presize.codecs import jpeg_decoder, jpeg_segments, jpeg_tiles, transcode
from presize.datasets import RandomResizedCrop
from presize.errors import ImageError
from presize.options import ImageOptions

OUT = Path(__file__).parent / "results" / "baseline.csv"
BUFFER = np.empty(64 << 20, np.uint8)


class Work(NamedTuple):
    """A JPEG of `shape` (height, width), and the box of it that is wanted."""

    data: bytes
    shape: tuple[int, int]
    box: tuple[int, int, int, int]


def by_libjpeg_turbo(work: Work) -> None:
    simplejpeg.decode_jpeg(work.data, "RGB", buffer=BUFFER)


def by_libjpeg_turbo_of_a_cut(work: Work) -> None:
    part = jpeg_tiles.cut(work.data, *work.box)
    simplejpeg.decode_jpeg(work.data if part is None else part.data, "RGB", buffer=BUFFER)


def by_jpeg_decoder(work: Work) -> None:
    if jpeg_decoder.decode(work.data, "RGB", work.shape, work.box, BUFFER) is None:
        raise SystemExit("a JPEG that presize's own decoder does not take")


def works(photos: list[Path], count: int) -> dict[str, tuple[list[Work], Callable[[Work], None]]]:
    """For each set its work, and how libjpeg-turbo does it."""
    whole: dict[str, list[Work]] = {"photographs, 4:4:4": [], "photographs, 4:2:0": []}
    stored: list[Work] = []
    for path in photos:
        data = path.read_bytes()
        try:
            header = jpeg_segments.parse(data)
            if jpeg_decoder.decode(data, "RGB", (header.height, header.width)) is None:
                continue
            (record,) = transcode.transcode(data, ImageOptions()).records
        except ImageError:
            continue
        kind = {((1, 1),) * 3: "4:4:4", ((2, 2), (1, 1), (1, 1)): "4:2:0"}.get(header.sampling)
        shape = (header.height, header.width)
        if kind and len(whole[f"photographs, {kind}"]) < count:
            whole[f"photographs, {kind}"].append(Work(data, shape, (0, 0, *shape)))
        shape = (record.height, record.width)
        if jpeg_tiles.IDENTIFIER in record.value and len(stored) < count:
            stored.append(Work(record.value, shape, (0, 0, *shape)))
    crop = RandomResizedCrop(224)
    heights, widths = (np.array([work.shape[axis] for work in stored]) for axis in (0, 1))
    boxes = crop.boxes(heights, widths, np.random.default_rng(0).random((len(stored), crop.draws)))
    crops = [Work(work.data, work.shape, tuple(box)) for work, box in zip(stored, boxes.tolist(), strict=True)]
    found = {name: (some, by_libjpeg_turbo) for name, some in whole.items() if some}
    found["stored at 256 px, all of each"] = (stored, by_libjpeg_turbo)
    found["stored at 256 px, a random crop"] = (crops, by_libjpeg_turbo_of_a_cut)
    return found


def microseconds(do: Callable[[Work], None], some: list[Work]) -> float:
    """CPU time an image."""
    start = time.process_time()
    for work in some:
        do(work)
    return (time.process_time() - start) / len(some) * 1e6


def table(rows: list[dict[str, str]]) -> str:
    lines = ["| | images | libjpeg-turbo, µs | presize, µs | times as fast |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name]
        turbo, ours = ([float(row[column]) for row in own] for column in ("libjpeg_turbo_us", "presize_us"))
        ratios = [a / b for a, b in zip(turbo, ours, strict=True)]
        lines.append(
            f"| {name} | {own[0]['images']} | {median(turbo):.0f} | {median(ours):.0f} | "
            f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", metavar="PHOTOS", help="searched recursively for JPEGs")
    parser.add_argument("--images", type=int, default=400, help="of each set, at most")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--csv", type=Path, default=OUT, help="replaced")
    parser.add_argument("--table", type=Path, metavar="CSV", help="print the table of this, and measure nothing")
    options = parser.parse_args()
    if options.table is not None and not options.table.is_file():
        parser.error(f"--table: there is no file {options.table}")
    if options.table is None:
        if options.source is None:
            parser.error("PHOTOS is missing")
        if not jpeg_decoder.is_available():
            raise SystemExit(
                "presize's own decoder is not compiled here, or not for this processor: presize doctor tells"
            )
        photos = find_photos(options.source)
        facts = conditions(photos)
        todo = works(photos, options.images)
        rows: list[dict[str, object]] = []
        for number in range(options.rounds):
            for name in random.Random(number).sample([*todo], len(todo)):
                some, by_turbo = todo[name]
                turbo, ours = microseconds(by_turbo, some), microseconds(by_jpeg_decoder, some)
                measured = {"libjpeg_turbo_us": round(turbo, 1), "presize_us": round(ours, 1)}
                rows.append(
                    {"date": date.today().isoformat(), "round": number, "set": name, "images": len(some)}
                    | measured
                    | facts
                )
        rows.sort(key=lambda row: [*todo].index(str(row["set"])))
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    with (options.table or options.csv).open(newline="") as file:
        print(table(list(csv.DictReader(file))))


if __name__ == "__main__":
    main()
