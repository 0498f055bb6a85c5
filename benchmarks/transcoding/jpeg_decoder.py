"""How fast presize's decoder of baseline JPEG is beside libjpeg-turbo: on photographs, and on stored images.

    python benchmarks/transcoding/jpeg_decoder.py PHOTOS

One process, from memory, CPU time; the two take turns within each round. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import simplejpeg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.codecs import jpeg_decoder, jpeg_segments, jpeg_tiles, transcode
from presize.datasets import RandomResizedCrop
from presize.errors import ImageError
from presize.options import ImageOptions
from shared import measuring, rates
from shared.conditions import conditions, find_photos

_SETS = (
    "photographs, 4:4:4", "photographs, 4:2:0", "stored at 256 px, all of each", "stored at 256 px, a random crop",
)  # fmt: skip
"""In the order of the table."""

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
        raise SystemExit("presize's decoder does not take this JPEG")


def works(photos: list[Path], count: int) -> dict[str, tuple[list[Work], Callable[[Work], None]]]:
    """For each set the images, and how libjpeg-turbo decodes one."""
    whole: dict[str, list[Work]] = {name: [] for name in _SETS[:2]}
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
    found[_SETS[2]] = (stored, by_libjpeg_turbo)
    found[_SETS[3]] = (crops, by_libjpeg_turbo_of_a_cut)
    return found


def microseconds(do: Callable[[Work], None], some: list[Work]) -> float:
    """CPU time per image."""
    start = time.process_time()
    for work in some:
        do(work)
    return (time.process_time() - start) / len(some) * 1e6


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for name in (name for name in _SETS if any(row["set"] == name for row in rows)):
        mine = rates.select(rows, set=name)
        turbo, presize = (rates.column(mine, column) for column in ("libjpeg_turbo_us", "presize_us"))
        medians = (f"{median(values):.0f}" for values in (turbo, presize))
        lines.append([name, mine[0]["images"], *medians, rates.times(turbo, presize)])
    first = rows[0]
    return "\n".join(
        [
            rates.table(["", "images", "libjpeg-turbo, µs", "presize, µs", "times as fast"], lines),
            "",
            f"{rates.rounds(rows)}, simplejpeg {first['simplejpeg']}, {rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    if not jpeg_decoder.is_available():
        raise SystemExit("presize's decoder is not compiled, or not for this processor: see presize doctor")
    photos = find_photos(options.source)
    facts = conditions(photos)
    todo = works(photos, options.images)

    def run(name: str) -> Iterator[measuring.Columns]:
        images, by_turbo = todo[name]
        turbo, presize = microseconds(by_turbo, images), microseconds(by_jpeg_decoder, images)
        times = {"libjpeg_turbo_us": round(turbo, 1), "presize_us": round(presize, 1)}
        yield {"set": name, "images": len(images)} | times

    measuring.in_rounds({name: partial(run, name) for name in todo}, options, facts, progress="presize_us")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--images", type=int, default=400, help="of each set, at most")
    measuring.run(arguments, measure_all, summary, minutes=1)


if __name__ == "__main__":
    main()
