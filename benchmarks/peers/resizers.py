"""One resizing library for benchmarks/transcoding/resizers.py: from RGB bytes in numpy arrays to RGB bytes.

    python benchmarks/peers/resizers.py BACKEND

Answers each line of JSON on standard input with another, until the input ends. Needs only numpy and the library, so
that it runs in any environment. Libraries are limited to one thread; the CPU time of all threads counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Backend(NamedTuple):
    """Three steps that are timed separately. `size` is (height, width).

    Attributes:
        load: converts a contiguous uint8 array (height, width, 3) into the library's format.
        resize: resizes it, and returns the library's result.
        unload: converts the result into an array (*size, 3).
    """

    load: Callable[[np.ndarray, tuple[int, int]], Any]
    resize: Callable[[Any, tuple[int, int]], Any]
    unload: Callable[[Any, tuple[int, int]], np.ndarray]
    version: str


def presize() -> Backend:
    """Return presize.codecs.pillow_resize as builds use it."""
    from presize.codecs.pillow_resize import resize

    return Backend(
        lambda pixels, _size: pixels,
        lambda pixels, size: resize(pixels, size, "bicubic"),
        lambda result, _size: result,
        version("presize"),
    )


def pillow() -> Backend:
    """Return Pillow, or pillow-simd if that is installed instead."""
    import PIL
    from PIL import Image

    return Backend(
        lambda pixels, _size: Image.fromarray(pixels),
        lambda image, size: image.resize((size[1], size[0]), Image.Resampling.BICUBIC),
        lambda result, _size: np.asarray(result),
        PIL.__version__,
    )


def opencv(interpolation: str) -> Backend:
    import cv2

    cv2.setNumThreads(1)
    how = getattr(cv2, f"INTER_{interpolation.upper()}")
    return Backend(
        lambda pixels, _size: pixels,
        lambda pixels, size: cv2.resize(pixels, (size[1], size[0]), interpolation=how),
        lambda result, _size: result,
        cv2.__version__,
    )


def torch() -> Backend:
    """Return torch, which gets a view of the array as a channels-last batch of one: its AVX2 code needs no copy."""
    import torch
    from torch.nn.functional import interpolate

    torch.set_num_threads(1)

    def load(pixels: np.ndarray, _size: tuple[int, int]) -> torch.Tensor:
        return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)

    def resize(batch: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return interpolate(batch, size, mode="bicubic", antialias=True)

    def unload(result: torch.Tensor, _size: tuple[int, int]) -> np.ndarray:
        return result[0].permute(1, 2, 0).contiguous().numpy()

    return Backend(load, resize, unload, torch.__version__)


def vips() -> Backend:
    """Return libvips. By default, its resize first shrinks by an integer for reductions of 4 or more."""
    os.environ["VIPS_CONCURRENCY"] = "1"  # read when the library is loaded
    import pyvips

    pyvips.cache_set_max(0)

    def load(pixels: np.ndarray, _size: tuple[int, int]) -> Any:
        height, width, _ = pixels.shape
        return pyvips.Image.new_from_memory(pixels, width, height, 3, "uchar")

    def resize(image: Any, size: tuple[int, int]) -> Any:
        shrunk = image.resize(size[1] / image.width, vscale=size[0] / image.height, kernel="cubic")
        return shrunk.write_to_memory()  # libvips computes only now

    def unload(result: Any, size: tuple[int, int]) -> np.ndarray:
        return np.frombuffer(result, np.uint8).reshape(*size, 3)

    return Backend(load, resize, unload, ".".join(str(pyvips.version(part)) for part in range(3)))


BACKENDS: dict[str, Callable[[], Backend]] = {
    "presize": presize,
    "pillow": pillow,
    "torch": torch,
    "vips": vips,
    "opencv-area": lambda: opencv("area"),
    "opencv-linear": lambda: opencv("linear"),
    "opencv-cubic": lambda: opencv("cubic"),
}


def measure(backend: Backend, sources: list[np.ndarray], size: int) -> dict[str, float]:
    """Return the CPU seconds of each step and the wall time for all `sources`, one after the other."""
    clock = time.process_time  # counts all threads
    load = resize = unload = 0.0
    start = time.perf_counter()
    room = np.empty(max(stored.size for stored in sources), np.uint8)
    for stored in sources:
        source = room[: stored.size].reshape(stored.shape)
        source[:] = stored  # just written, as by a decoder
        wanted = covering(source, size)
        begun = clock()
        loaded = backend.load(source, wanted)
        is_loaded = clock()
        result = backend.resize(loaded, wanted)
        is_resized = clock()
        backend.unload(result, wanted)
        load, resize = load + is_loaded - begun, resize + is_resized - is_loaded
        unload += clock() - is_resized
    return {"load_s": load, "resize_s": resize, "unload_s": unload, "wall_s": time.perf_counter() - start}


def covering(source: np.ndarray, size: int) -> tuple[int, int]:
    """Return (height, width) after resizing the shorter side to `size`, like torchvision's Resize."""
    height, width, _ = source.shape
    short = min(height, width)
    return size * height // short, size * width // short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=BACKENDS)
    try:
        backend = BACKENDS[parser.parse_args().backend]()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    print(json.dumps({"version": backend.version}), flush=True)
    sources: dict[str, list[np.ndarray]] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        folder, size = Path(asked["folder"]), asked["size"]
        if asked["folder"] not in sources:
            sources[asked["folder"]] = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]
        images = sources[asked["folder"]]
        answer: dict[str, float] = {}
        if "out" in asked:
            for number, image in enumerate(images):
                wanted = covering(image, size)
                pixels = backend.unload(backend.resize(backend.load(image.copy(), wanted), wanted), wanted)
                np.save(Path(asked["out"], f"{number:04}.npy"), pixels)
        else:
            answer = measure(backend, images, size)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
