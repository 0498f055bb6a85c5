"""Make tests/fixtures/format-1, a committed dataset that every later version must open.

This script was run once, on a machine with 4 KiB pages, and is kept as a record. Do not rerun it to repair a failing
test: a changed format needs a new version and another fixture.

    python tools/make_fixture.py FOLDER
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from presize import BuildOptions, Dataset, ImageOptions, RunOptions, Size, build_dataset

NAMES = ("ant/10.png", "ant/9.png", "ant/sub/0.png", "bee/1.png", "cow/été.png", "cow/ü/2.png")
MTIME_NS = 1_700_000_000_000_000_000


def make_source(folder: Path) -> None:
    """Write six images, 40 pixels wide and 30 to 35 high, in three classes, and a file that is not an image."""
    y, x = np.mgrid[0:30, 0:40]
    for i, name in enumerate(NAMES):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        waves = [128 + 100 * np.sin((x * (c + 1) + y * (i + 1)) / 9 + c) for c in range(3)]
        rows = np.pad(np.stack(waves, axis=-1).round().astype(np.uint8), ((0, i), (0, 0), (0, 0)), "edge")
        Image.fromarray(rows).save(path)
    (folder / "cow" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 not much of a JPEG")
    for path in folder.rglob("*"):
        os.utime(path, ns=(MTIME_NS, MTIME_NS))


def main(out: Path) -> None:
    options = ImageOptions(sizes=(Size(24, 24),), quality=50, subsampling="444")
    with tempfile.TemporaryDirectory() as source:
        make_source(Path(source))
        build_dataset(source, out, BuildOptions(options, shard_samples=4), RunOptions(jobs=1, report=False))
    data = Dataset(out)
    for i, pixels in sorted(data.pixels(range(len(data))), key=lambda found: found[0]):
        label = data.numbers("label")[i]
        print((data.path(i), int(label), pixels.shape, zlib.crc32(data.value(i)), zlib.crc32(pixels.tobytes())))
    print(sum(path.stat().st_size for path in out.rglob("*") if path.is_file()), "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
