"""The codec limit: decode at full size and encode at the target size, without resizing or writing.

No build that decodes and encodes with libjpeg-turbo can be faster, except by decoding less. The script encodes the
corner of the photograph, with the size of the resized image. The clock starts after every worker has imported its codec
and finished its first images.
"""

from __future__ import annotations

import time
from multiprocessing import get_context
from typing import Any

import simplejpeg
from common import jpegs, parser, report, shrunk

_FIRST_IMAGES = 20
_IMAGES_A_JOB = 50


def transcode(names: list[str], size: int, quality: int) -> int:
    """Decode and encode the files; return the number of files that could be decoded."""
    done = 0
    for name in names:
        with open(name, "rb", buffering=0) as file:
            data = file.read()
        try:
            pixels = simplejpeg.decode_jpeg(data, "RGB")
        except ValueError:
            continue
        width, height = shrunk(pixels.shape[1], pixels.shape[0], size)
        simplejpeg.encode_jpeg(pixels[:height, :width].copy(), quality, "RGB", "420")
        done += 1
    return done


def begin(ready: Any, names: list[str], size: int, quality: int) -> None:
    transcode(names, size, quality)
    ready.wait()


def job(arguments: tuple[list[str], int, int]) -> int:
    return transcode(*arguments)


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    size, quality = arguments.size, arguments.quality
    names = jpegs(arguments.folder)
    strides = -(-len(names) // _IMAGES_A_JOB)
    jobs = [(names[first::strides], size, quality) for first in range(strides)]
    fork = get_context("fork")
    ready = fork.Barrier(arguments.procs + 1)
    with fork.Pool(arguments.procs, begin, (ready, names[:_FIRST_IMAGES], size, quality)) as pool:
        ready.wait()
        start = time.perf_counter()
        done = sum(pool.imap_unordered(job, jobs))
        seconds = time.perf_counter() - start
    report(done, seconds)


if __name__ == "__main__":
    main()
