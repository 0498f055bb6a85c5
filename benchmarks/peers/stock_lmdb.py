"""A typical LMDB script: a process pool, Pillow with Lanczos, one LMDB in one transaction.

The time excludes imports and the list of files, in the script's favour; forking the pool takes milliseconds.
"""

from __future__ import annotations

import io
import shutil
import time
from multiprocessing import get_context
from pathlib import Path

import lmdb
from common import jpegs, parser, report, shrunk
from PIL import Image

_MAP_BYTES = 1 << 38


def resized(sample: tuple[int, str, int, int]) -> tuple[int, bytes]:
    number, name, size, quality = sample
    with Image.open(name) as file:
        image = file.convert("RGB")
    target = shrunk(*image.size, size)
    if target != image.size:
        image = image.resize(target, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return number, buffer.getvalue()


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--out", type=Path, required=True, help="LMDB to write; replaced if it exists")
    options = arguments.parse_args()
    samples = [(number, name, options.size, options.quality) for number, name in enumerate(jpegs(options.folder))]
    shutil.rmtree(options.out, ignore_errors=True)
    start = time.perf_counter()
    env = lmdb.open(str(options.out), map_size=_MAP_BYTES)
    with get_context("fork").Pool(options.procs) as pool, env.begin(write=True) as transaction:
        for number, value in pool.imap_unordered(resized, samples, chunksize=8):
            transaction.put(b"%08d" % number, value)
    env.close()
    report(len(samples), time.perf_counter() - start)


if __name__ == "__main__":
    main()
