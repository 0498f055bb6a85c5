"""Compare resizing of random crops by presize's C code, by Pillow, and by other libraries.

    python benchmarks/transcoding/crops.py PHOTOS

Presizes the JPEGs below PHOTOS to 256 px like `presize build`, crops them at random, and resizes the crops to 224 px.
All libraries get the same pixels, in one process. Times are CPU times. presize's C code is measured with each
instruction set of the processor. Fails if one of its bytes differs from Pillow's; asserts no times.
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
from types import ModuleType

import cv2
import numpy as np
import numpy.typing as npt
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.codecs import pillow_resize, stored_value, transcode
from presize.datasets import RandomResizedCrop
from presize.datasets.reading.regions import by_pillow
from presize.errors import ImageError
from presize.options import ImageOptions
from shared import measuring, rates
from shared.conditions import conditions, find_photos, machine

Pixels = npt.NDArray[np.uint8]

_SIZE = 224
_BATCH = 128
_LEVELS = ("plain C", "AVX2", "AVX-512")
_ENLARGED, _SHRUNK = "enlarged", "shrunk along one or both axes"
_LIBRARIES = ("Pillow", "OpenCV linear", "torch, antialiased")


def crops(photos: list[Path], count: int) -> list[Pixels]:
    """Return random crops of decoded stored images, as views."""
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
    """Return the CPU time per crop. The batch is reused, like that of a loader."""
    start = time.process_time()
    for pixels, row in zip(some, cycle(batch)):
        resize(pixels, row)
    return (time.process_time() - start) / len(some) * 1e6


def compare(some: list[Pixels], by_presize: Callable[[Pixels, Pixels], object]) -> None:
    """Raise SystemExit if a byte differs from Pillow's."""
    ours, theirs = np.empty((2, _SIZE, _SIZE, 3), np.uint8)
    for pixels in some:
        by_presize(pixels, ours)
        by_pillow(pixels, theirs)
        if not np.array_equal(ours, theirs):
            raise SystemExit("expected Pillow's pixels from presize, got others")


def by_presize(module: ModuleType, level: int, pixels: Pixels, out: Pixels) -> None:
    vertical_first = pillow_resize.installed_order() == "vertical when it shrinks more"
    pillow_resize.resize_by(
        module, pixels, (_SIZE, _SIZE), "bilinear", vertical_first=vertical_first, out=out, level=level
    )


def by_opencv(pixels: Pixels, out: Pixels) -> None:
    cv2.resize(pixels, (_SIZE, _SIZE), dst=out, interpolation=cv2.INTER_LINEAR)


def by_torch(pixels: Pixels, out: Pixels) -> None:
    source, result = (
        torch.from_numpy(array).permute(2, 0, 1).unsqueeze(0) for array in (np.ascontiguousarray(pixels), out)
    )
    torch.ops.aten._upsample_bilinear2d_aa.out(source, [_SIZE, _SIZE], False, None, None, out=result)


def summary(rows: list[rates.Row]) -> str:
    lines = []
    for name in (_ENLARGED, _SHRUNK):
        mine = rates.select(rows, set=name)
        pillow = rates.column(mine, "Pillow_us")
        for by in (*reversed(_LEVELS), *_LIBRARIES):
            if f"{by}_us" in mine[0]:
                times = rates.column(mine, f"{by}_us")
                shown = f"presize, {by}" if by in _LEVELS else by
                lines.append([name, mine[0]["images"], shown, f"{median(times):.0f}", rates.times(pillow, times)])
    first = rows[0]
    return "\n".join(
        [
            rates.table(["crops", "images", "by", "µs", "times Pillow"], lines),
            "",
            f"{rates.rounds(rows)}, Pillow {first['pillow']}, torch {first['torch']}, OpenCV "
            f"{first['opencv-python-headless']}, {rates.machine(first)}.",
        ]
    )


def measure_all(options: argparse.Namespace) -> None:
    compiled = pillow_resize.compiled.trusted()
    if compiled is None or pillow_resize.installed_order() == "another":
        raise SystemExit("presize's resize is not compiled, or another library replaces Pillow")
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    photos = find_photos(options.source)
    sets: dict[str, list[Pixels]] = {_ENLARGED: [], _SHRUNK: []}
    for pixels in crops(photos, options.images):
        sets[_ENLARGED if max(pixels.shape[:2]) <= _SIZE else _SHRUNK].append(pixels)
    batch = np.zeros((_BATCH, _SIZE, _SIZE, 3), np.uint8)

    resizers: dict[str, Callable[[Pixels, Pixels], object]] = {
        _LEVELS[level]: partial(by_presize, compiled, level) for level in range(compiled.level() + 1)
    }
    for resize in resizers.values():
        for some in sets.values():  # also computes the tables
            compare(some, resize)
    resizers |= zip(_LIBRARIES, (by_pillow, by_opencv, by_torch), strict=True)

    def run(name: str) -> Iterator[measuring.Columns]:
        yield {"set": name, "images": len(sets[name])} | {
            f"{by}_us": round(microseconds(resize, sets[name], batch), 2) for by, resize in resizers.items()
        }

    facts = {**conditions(photos), **machine(options.source), "torch": torch.__version__}
    variants = {name: partial(run, name) for name in sets}
    measuring.in_rounds(variants, options, facts, progress="Pillow_us")


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=9)
    arguments.add_argument("--images", type=int, default=1000, help="maximum number of images")
    measuring.run(arguments, measure_all, summary, minutes=1)


if __name__ == "__main__":
    main()
