"""One library that resizes, as benchmarks/transcoding/resizers.py runs it: RGB bytes in numpy arrays to RGB bytes.

    python benchmarks/peers/resizers.py BACKEND

Answers each line of JSON on standard input with one of its own, until the input ends. It needs numpy and
the library alone, so that it runs in any environment. One thread: what a library starts besides is told
to be one, and its time is counted.
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
    """Three steps, timed apart. `size` is (height, width).

    load: a contiguous uint8 array (height, width, 3) -> what the library works on.
    resize: that -> the result, as the library gives it.
    unload: the result -> an array (*size, 3).
    """

    load: Callable[[np.ndarray, tuple[int, int]], Any]
    resize: Callable[[Any, tuple[int, int]], Any]
    unload: Callable[[Any, tuple[int, int]], np.ndarray]
    version: str


def presize() -> Backend:
    """presize.codecs.pillow_resize, as a build uses it."""
    from presize.codecs.pillow_resize import resize

    return Backend(
        lambda pixels, _size: pixels,
        lambda pixels, size: resize(pixels, size, "bicubic"),
        lambda result, _size: result,
        version("presize"),
    )


def pillow() -> Backend:
    """Also pillow-simd, where that is installed in the place of Pillow."""
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
    """A view of the array as a channels-last batch of one, which its AVX2 code takes as it is."""
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
    """Its resize shrinks by whole numbers first where the reduction is 4 or more; that is its default."""
    os.environ["VIPS_CONCURRENCY"] = "1"  # read when the library is loaded
    import pyvips

    pyvips.cache_set_max(0)

    def load(pixels: np.ndarray, _size: tuple[int, int]) -> Any:
        height, width, _ = pixels.shape
        return pyvips.Image.new_from_memory(pixels, width, height, 3, "uchar")

    def resize(image: Any, size: tuple[int, int]) -> Any:
        shrunk = image.resize(size[1] / image.width, vscale=size[0] / image.height, kernel="cubic")
        return shrunk.write_to_memory()  # nothing is computed before

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
    """Seconds for all `sources`, one after the other: of the CPU, by step, and on the wall."""
    clock = time.process_time  # that of all threads
    load = resize = unload = 0.0
    start = time.perf_counter()
    room = np.empty(max(stored.size for stored in sources), np.uint8)
    for stored in sources:
        source = room[: stored.size].reshape(stored.shape)
        source[:] = stored  # as a decoder leaves it: just written
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
    """(height, width) once the shorter side is `size`, as torchvision's Resize computes them."""
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
