"""The decode limit: simplejpeg decodes every stored JPEG in full. No crop, no resize, no batch.

The files are read before the clock starts. Each process decodes its share into one reused buffer. No loader that
decodes whole images with libjpeg-turbo can be faster.
"""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any

import numpy as np
import simplejpeg
from loading import chosen, contents, parser


def decode_all(values: list[bytes], buffer: Any) -> int:
    for value in values:
        simplejpeg.decode_jpeg(value, "RGB", buffer=buffer)
    return len(values)


def worker(names: list[str], epochs: int, step: Any) -> None:
    values = [contents(name) for name in names]
    largest = max(height * width for height, width, *_ in map(simplejpeg.decode_jpeg_header, values))
    buffer = np.empty(3 * largest, np.uint8)
    for _ in range(1 + epochs):
        step.wait()
        decode_all(values, buffer)
        step.wait()


def main() -> None:
    options = parser(__doc__ or "").parse_args()
    names = chosen(options)
    if options.limit is not None:
        names = names[: options.limit * options.batch]
    fork = get_context("fork")
    step = fork.Barrier(options.workers + 1)
    shares = [names[first :: options.workers] for first in range(options.workers)]
    processes = [fork.Process(target=worker, args=(share, options.epochs, step), daemon=True) for share in shares]
    for process in processes:
        process.start()
    seconds = []
    for _ in range(1 + options.epochs):
        step.wait()
        start = time.perf_counter()
        step.wait()
        seconds.append(time.perf_counter() - start)
    for process in processes:
        process.join()
    versions = " ".join(f"{name}={version(name)}" for name in ("simplejpeg", "numpy"))
    facts = {"images": options.epochs * len(names), "seconds": round(sum(seconds[1:]), 4)}
    print(json.dumps({**facts, "first_batch_s": 0.0, "start_s": 0.0, "versions": versions}))


if __name__ == "__main__":
    main()
