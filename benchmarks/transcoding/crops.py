"""How fast random crops are resized for a batch: by presize's C, and by OpenCV and torch, which it takes the place of.

    python benchmarks/transcoding/crops.py PHOTOS

The JPEGs below PHOTOS are made to 256 px as `presize build` does, cropped at random and resized to 224 px: by both from
the same pixels, in one process, by CPU time. With AVX-512 the code for AVX2 is measured, too. Exits with an error where
a byte differs; asserts no time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

import cv2
import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.codecs import stored_value, transcode
from presize.datasets import RandomResizedCrop
from presize.datasets.reading import resample as resampling
from presize.errors import ImageError
from presize.options import ImageOptions
from shared import measuring, rates
from shared.conditions import conditions, find_photos, machine

Pixels = npt.NDArray[np.uint8]

_SIZE = 224
_BATCH = 128
_WINDOWS = {"avx2": 16, "avx512": 64}
"""In bytes, those of resample_by."""
_ENLARGED, _SHRUNK = "enlarged, by OpenCV", "shrunk on a side or two, by torch"


def crops(photos: list[Path], count: int) -> list[Pixels]:
    """Views of stored images, decoded."""
    found, crop, draw = [], RandomResizedCrop(_SIZE), np.random.default_rng(0)
    for photo in photos:
        try:
            (record,) = transcode.transcode(photo.read_bytes(), ImageOptions()).records
        except ImageError:
            continue
        shape = record.height, record.width
        pixels = stored_value.decode_value(memoryview(record.value), "jpeg", "rgb", shape, 1 << 24)
        heights, widths = (np.array([side]) for side in shape)
        ((top, left, height, width),) = crop.boxes(heights, widths, draw.random((1, crop.draws))).tolist()
        found.append(pixels[top : top + height, left : left + width])
        if len(found) == count:
            break
    return found


def microseconds(resize: Callable[[Pixels, Pixels], object], some: list[Pixels], batch: Pixels) -> float:
    """CPU time per crop. The batch is used again and again, as that of a loader is."""
    start = time.process_time()
    for pixels, row in zip(some, cycle(batch)):
        resize(pixels, row)
    return (time.process_time() - start) / len(some) * 1e6


def compare(some: list[Pixels], by_presize: Callable[[Pixels, Pixels], object]) -> None:
    """Raises SystemExit where a byte differs."""
    ours, theirs = np.empty((2, _SIZE, _SIZE, 3), np.uint8)
    for pixels in some:
        by_presize(pixels, ours)
        resampling.resample_by_libraries(pixels, theirs)
        if not np.array_equal(ours, theirs):
            raise SystemExit("presize makes other pixels than OpenCV and torch")


def summary(rows: list[rates.Row]) -> str:
    first, lines = rows[0], []
    for name in (_ENLARGED, _SHRUNK):
        mine = rates.select(rows, set=name)
        libraries = rates.column(mine, "libraries_us")
        for window in (window for window in _WINDOWS if f"{window}_us" in first):
            presize = rates.column(mine, f"{window}_us")
            lines.append(
                [name, mine[0]["images"], f"{median(libraries):.0f}", window, f"{median(presize):.0f}",
                 rates.times(libraries, presize)]
            )  # fmt: skip
    return "\n".join(
        [
            rates.table(["crops", "images", "libraries, µs", "with", "presize, µs", "times as fast"], lines),
            "",
            f"{rates.rounds(rows)}, torch {first['torch']}, OpenCV {first['opencv-python-headless']}, "
            f"{rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    compiled = resampling.compiled.trusted()
    if compiled is None:
        raise SystemExit("presize's resizing of crops is not compiled, or not for this processor")
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    photos = find_photos(options.source)
    sets: dict[str, list[Pixels]] = {_ENLARGED: [], _SHRUNK: []}
    for pixels in crops(photos, options.images):
        sets[_ENLARGED if max(pixels.shape[:2]) <= _SIZE else _SHRUNK].append(pixels)
    batch = np.zeros((_BATCH, _SIZE, _SIZE, 3), np.uint8)

    resizers: dict[str, Callable[[Pixels, Pixels], object]] = {
        name: partial(resampling.resample_by, compiled, flip=False, window=window)
        for name, window in _WINDOWS.items()
        if window <= compiled.window_bytes()
    }
    for by_presize in resizers.values():
        for some in sets.values():  # which makes the tables, too
            compare(some, by_presize)
    resizers["libraries"] = resampling.resample_by_libraries

    def run(name: str) -> Iterator[measuring.Columns]:
        yield {"set": name, "images": len(sets[name])} | {
            f"{by}_us": round(microseconds(resize, sets[name], batch), 2) for by, resize in resizers.items()
        }

    facts = {**conditions(photos), **machine(options.source), "torch": torch.__version__}
    variants = {name: partial(run, name) for name in sets}
    measuring.in_rounds(variants, options, facts, progress="avx2_us")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--images", type=int, default=1000, help="at most")
    measuring.run(arguments, measure_all, summary, minutes=1)


if __name__ == "__main__":
    main()
