"""Compare presize's baseline JPEG decoder with libjpeg-turbo, on photographs and on stored images.

    python benchmarks/transcoding/jpeg_decoder.py PHOTOS --large MOSAICS

Runs in one process, from memory; both decoders take turns within each round. Times are CPU times. In rows marked SSE2,
another process limits both decoders to it. The conversion of a JPEG by `--tiles all` is compared with decoding that
JPEG. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import simplejpeg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.codecs import transcode
from presize.codecs.compiled import VARIABLE
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.jpeg.tiles import TAG, cut_jpeg, recoded
from presize.datasets import RandomResizedCrop
from presize.errors import ImageError
from presize.options import ImageOptions
from shared import measuring, rates
from shared.conditions import conditions, find_photos

_SCALES = (1, 2, 4, 8)
_LARGE = {scale: "large photographs, " + ("in full" if scale == 1 else f"at 1/{scale}") for scale in _SCALES}
_WHOLE = ("photographs, 4:4:4", "photographs, 4:2:0")
_STORED, _CROPS = "stored at 256 px, all of each", "stored at 256 px, a random crop"
_RECODING, _RECODED = "at 256 px without tiles, coded again in tiles", "coded again, a random crop"
_SSE2 = {f"{name}, SSE2": name for name in (*_WHOLE, *_LARGE.values())}
_SETS = (*_WHOLE, *_LARGE.values(), _STORED, _CROPS, _RECODED, _RECODING, *_SSE2)
"""In the order of the table."""

BUFFER = np.empty(64 << 20, np.uint8)


class Work(NamedTuple):
    """A JPEG of `shape` (height, width), and its box to decode at 1/scale."""

    data: bytes
    shape: tuple[int, int]
    box: tuple[int, int, int, int]
    scale: int = 1


def by_libjpeg_turbo(work: Work) -> None:
    height, width = (-(-side // work.scale) for side in work.shape)
    simplejpeg.decode_jpeg(work.data, "RGB", min_height=height, min_width=width, buffer=BUFFER)


def by_libjpeg_turbo_of_a_cut(work: Work) -> None:
    part = cut_jpeg(work.data, *work.box)
    simplejpeg.decode_jpeg(work.data if part is None else part.data, "RGB", buffer=BUFFER)


def by_jpeg_decoder(work: Work) -> None:
    if jpeg_decoder.decode(work.data, "RGB", work.shape, work.box, BUFFER, work.scale) is None:
        raise SystemExit("presize's decoder cannot decode this JPEG")


def into_tiles(work: Work) -> None:
    recoded(work.data)


class Set(NamedTuple):
    """Images, and the functions of both decoders."""

    works: list[Work]
    by_presize: Callable[[Work], None] = by_jpeg_decoder
    by_turbo: Callable[[Work], None] = by_libjpeg_turbo


def large_sets(photos: list[Path]) -> dict[str, Set]:
    """Return the sets of whole photographs, one per scale."""
    found: dict[str, Set] = {name: Set([]) for name in _LARGE.values()}
    for path in photos:
        data = path.read_bytes()
        header = jpeg_segments.parse(data)
        for scale, name in _LARGE.items():
            height, width = -(-header.height // scale), -(-header.width // scale)
            found[name].works.append(Work(data, (header.height, header.width), (0, 0, height, width), scale))
    return found


def sets(photos: list[Path], count: int) -> dict[str, Set]:
    """Return the sets of photographs and of the images that presize stores."""
    whole: dict[str, list[Work]] = {name: [] for name in _WHOLE}
    stored: list[Work] = []
    plain: list[Work] = []
    for path in photos:
        data = path.read_bytes()
        try:
            header = jpeg_segments.parse(data)
            if jpeg_decoder.decode(data, "RGB", (header.height, header.width)) is None:
                continue
            (record,) = transcode.transcode(data, ImageOptions()).records
            (without,) = transcode.transcode(data, ImageOptions(tiles="none")).records
        except ImageError:
            continue
        kind = {((1, 1),) * 3: "4:4:4", ((2, 2), (1, 1), (1, 1)): "4:2:0"}.get(header.sampling)
        shape = (header.height, header.width)
        if kind and len(whole[f"photographs, {kind}"]) < count:
            whole[f"photographs, {kind}"].append(Work(data, shape, (0, 0, *shape)))
        shape = (record.height, record.width)
        if TAG in record.value and len(stored) < count:
            stored.append(Work(record.value, shape, (0, 0, *shape)))
            plain.append(Work(without.value, shape, (0, 0, *shape)))
    crop = RandomResizedCrop(224)
    heights, widths = (np.array([work.shape[axis] for work in stored]) for axis in (0, 1))
    boxes = crop.boxes(heights, widths, np.random.default_rng(0).random((len(stored), crop.draws)))
    crops = [work._replace(box=tuple(box)) for work, box in zip(stored, boxes.tolist(), strict=True)]
    again = [crop._replace(data=recoded(work.data)) for crop, work in zip(crops, plain, strict=True)]
    return {
        **{name: Set(some) for name, some in whole.items() if some},
        _STORED: Set(stored),
        _CROPS: Set(crops, by_turbo=by_libjpeg_turbo_of_a_cut),
        _RECODED: Set(again, by_turbo=by_libjpeg_turbo_of_a_cut),
        _RECODING: Set(plain, by_presize=into_tiles),
    }


def microseconds(do: Callable[[Work], None], some: list[Work]) -> float:
    """CPU time per image."""
    start = time.process_time()
    for work in some:
        do(work)
    return (time.process_time() - start) / len(some) * 1e6


def times(some: Set) -> dict[str, float]:
    """Return the CPU time per image of both decoders."""
    turbo, presize = (microseconds(do, some.works) for do in (some.by_turbo, some.by_presize))
    return {"libjpeg_turbo_us": round(turbo, 1), "presize_us": round(presize, 1)}


_held: dict[str, Set] = {}


def hold_to_sse2(todo: dict[str, Set]) -> None:
    """Limit both decoders to SSE2. Must run in a new process, before any decoding."""
    os.environ |= {"JSIMD_FORCESSE2": "1", VARIABLE: "no-avx2"}
    _held.update(todo)


def times_held(name: str) -> dict[str, float]:
    return times(_held[name])


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
        raise SystemExit("presize's decoder is not compiled, or not usable on this processor: see presize doctor")
    photos = find_photos(options.source)
    facts = conditions(photos)
    todo = sets(photos, options.images) | (large_sets(find_photos(options.large)) if options.large else {})
    held = {name: todo[of] for name, of in _SSE2.items() if of in todo}
    spawn = multiprocessing.get_context("spawn")

    with ProcessPoolExecutor(1, spawn, hold_to_sse2, (held,)) as sse2:

        def run(name: str) -> Iterator[measuring.Columns]:
            taken = sse2.submit(times_held, name).result() if name in held else times(todo[name])
            yield {"set": name, "images": len((held | todo)[name].works)} | taken

        variants = {name: partial(run, name) for name in (*todo, *held)}
        measuring.in_rounds(variants, options, facts, progress="presize_us")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--images", type=int, default=400, help="images per set, except the large ones")
    arguments.add_argument("--large", type=Path, metavar="FOLDER", help="large photographs: see building/mosaics.py")
    measuring.run(arguments, measure_all, summary, minutes=3)


if __name__ == "__main__":
    main()
