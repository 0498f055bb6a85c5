"""Compare the speed of resizing libraries, and the errors of their pixels relative to exact arithmetic.

    python benchmarks/transcoding/resizers.py PHOTOS --sse4-python SSE4_ENV/bin/python \\
        --avx2-python AVX2_ENV/bin/python --vips-python VIPS_ENV/bin/python

Every library gets the same arrays of decoded pixels, in its own process for the whole measurement. They take turns, in
random order, on one set of images at a time. Prints a table; asserts no times.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import simplejpeg
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize import options
from presize.codecs import resize
from shared import measuring, rates
from shared.builds import PEERS
from shared.conditions import conditions, find_photos

PHOTOS = "photographs"
LARGE = "12 megapixels"
PLATE = "zone plate"
"""The sets of images. The zone plate is not timed."""

EXACT = "exact, rounded"
"""The reference rounded to integers: the smallest possible error."""

BASE = "Pillow"

BACKENDS: dict[str, tuple[str, str]] = {
    "presize": ("presize", ""),
    "pillow-simd, AVX2": ("pillow", "avx2"),
    "pillow-simd, SSE4": ("pillow", "sse4"),
    BASE: ("pillow", ""),
    "Pillow 12": ("pillow", "pillow12"),
    "torch, antialiased": ("torch", ""),
    "libvips": ("vips", "vips"),
    "OpenCV area": ("opencv-area", ""),
    "OpenCV cubic": ("opencv-cubic", ""),
    "OpenCV linear": ("opencv-linear", ""),
}
"""The name in peers/resizers.py, and the environment; "" is presize's own."""

OURS: dict[str, Literal["presize", "pillow"]] = {"presize": "presize", BASE: "pillow"}
"""Names in --resize-backend."""


_LARGE_SIZE = (3000, 4000)
_PLATE_SIDE = 1024

Pixels = np.ndarray


@dataclass(frozen=True)
class Set:
    """Images to resize: `count` files of NumPy arrays."""

    name: str
    folder: Path
    count: int


class Peer:
    """A process of peers/resizers.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.hello = self._answer()

    def ask(self, **question: object) -> dict[str, Any]:
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit(f"no answer from {self._process.args}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def peer(python: Path, backend: str) -> Iterator[Peer]:
    command = [str(python), str(PEERS / "resizers.py"), backend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Peer(process)


def reference(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize by antialiased bicubic interpolation (a = -0.5) in float64; return (height, width, 3), clipped to 0 to
    255, not rounded.

    The weights are those of Pillow and of torchvision's antialias=True: the cubic convolution, as wide as the
    reduction, at the centres of the pixels, with a sum of 1 inside the image.
    """
    rows, columns = weights(pixels.shape[0], height), weights(pixels.shape[1], width)
    # Matrix products, one axis after the other, are fastest in NumPy.
    tall = rows @ pixels.astype(np.float64).reshape(pixels.shape[0], -1)
    wide = columns @ tall.reshape(height, pixels.shape[1], 3).transpose(1, 0, 2).reshape(pixels.shape[1], -1)
    return np.clip(wide.reshape(width, height, 3).transpose(1, 0, 2), 0, 255)


def weights(source: int, target: int) -> np.ndarray:
    """Return a matrix (target, source) whose rows sum to 1."""
    scale = source / target
    stretch = max(scale, 1.0)
    centres = (np.arange(target) + 0.5) * scale
    x = np.abs((np.arange(source)[None, :] + 0.5 - centres[:, None]) / stretch)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    values = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def error(results: list[Pixels], references: list[Pixels]) -> dict[str, object]:
    """Return the errors over all pixels of a set."""
    squares = total = worst = 0.0
    count = 0
    for result, exact in zip(results, references, strict=True):
        difference = np.abs(result.astype(np.float64) - exact)
        squares, total = squares + float((difference**2).sum()), total + float(difference.sum())
        worst, count = max(worst, float(difference.max())), count + difference.size
    return {
        "psnr_db": round(10 * math.log10(255**2 * count / squares), 2),
        "max_error": round(worst, 2),
        "mean_error": round(total / count, 4),
    }


def zone_plate() -> Pixels:
    """Return an image of rings that get finer outwards, up to the Nyquist limit, which shows aliasing."""
    squared = (np.arange(_PLATE_SIDE) - (_PLATE_SIDE - 1) / 2) ** 2
    rings = 127.5 + 127.5 * np.cos(math.pi * (squared[:, None] + squared) / _PLATE_SIDE)
    return np.repeat(np.rint(rings).astype(np.uint8)[:, :, None], 3, axis=2)


def make_sets(photos: list[Path], work: Path, large: int) -> list[Set]:
    """Write the sets: decoded photographs, some of them enlarged to 12 megapixels, and a zone plate."""
    shutil.rmtree(work, ignore_errors=True)
    made = []
    decoded = [simplejpeg.decode_jpeg(path.read_bytes(), "RGB") for path in photos]
    enlarged = [
        np.asarray(Image.fromarray(pixels).resize(_LARGE_SIZE[::-1], Image.Resampling.LANCZOS))
        for pixels in decoded[:large]
    ]
    sets = {PHOTOS: decoded, LARGE: enlarged, PLATE: [zone_plate()]}
    for number, (name, images) in enumerate(sets.items()):
        folder = work / str(number)
        folder.mkdir(parents=True)
        for place, pixels in enumerate(images):
            np.save(folder / f"{place:04}.npy", pixels)
        made.append(Set(name, folder, len(images)))
    return made


def choose(photos: list[Path], count: int, size: int) -> list[Path]:
    """Return `count` evenly spaced photographs that are larger than `size`."""
    shrinking = []
    for path in photos:
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(path.read_bytes())
        except ValueError:  # not a JPEG
            continue
        if min(height, width) > size:
            shrinking.append(path)
    if not shrinking:
        raise SystemExit(f"expected JPEGs with a shorter side of more than {size} px, found none")
    return [shrinking[place] for place in np.unique(np.linspace(0, len(shrinking) - 1, count).astype(int))]


def load(folder: Path) -> list[Pixels]:
    return [np.load(path) for path in sorted(folder.glob("*.npy"))]


def errors(peers: dict[str, Peer], sets: list[Set], size: int) -> dict[tuple[str, str], dict[str, object]]:
    """Return errors by set and backend. Raises SystemExit if a backend's pixels differ from those of a build."""
    found = {}
    for images in sets:
        sources, out = load(images.folder), images.folder / "out"
        targets = [resize.target(options.Size(*pixels.shape[:2]), options.Size(size, size), "shorter", False)
                   for pixels in sources]  # fmt: skip
        exact = [reference(pixels, *target.size) for pixels, target in zip(sources, targets, strict=True)]
        found[images.name, EXACT] = error([np.rint(pixels).astype(np.uint8) for pixels in exact], exact)
        for name, process in peers.items():
            out.mkdir()
            process.ask(folder=str(images.folder), size=size, out=str(out))
            results = load(out)
            shutil.rmtree(out)
            found[images.name, name] = error(results, exact)
            if name in OURS:
                ours = OURS[name]
                for pixels, target, result in zip(sources, targets, results, strict=True):
                    if not np.array_equal(resize.resize(pixels, target, "bicubic", ours), result):
                        raise SystemExit(f"{name}: pixels of presize.codecs.resize and peers/resizers.py differ")
    return found


def call_ms(rows: list[rates.Row], images: str) -> dict[str, list[float]]:
    """Return milliseconds per image from array to array, one number per round."""
    return _by_backend(rows, images, ("load_ms", "resize_ms", "unload_ms"))


def resize_ms(rows: list[rates.Row], images: str) -> dict[str, list[float]]:
    """Return milliseconds per image without copies into the library's own format and back."""
    return _by_backend(rows, images, ("resize_ms",))


def _by_backend(rows: list[rates.Row], images: str, columns: tuple[str, ...]) -> dict[str, list[float]]:
    timed = [row for row in rows if row["set"] == images and row["round"]]
    found = {
        name: [sum(float(row[column]) for column in columns) for row in rates.select(timed, backend=name)]
        for name in BACKENDS
    }
    return {name: values for name, values in found.items() if values}


def errors_of(rows: list[rates.Row], images: str) -> dict[str, rates.Row]:
    """Return a row of each backend."""
    return {row["backend"]: row for row in rows if row["set"] == images}


def speed_table(rows: list[rates.Row], images: str) -> str:
    whole, alone, wrong = call_ms(rows, images), resize_ms(rows, images), errors_of(rows, images)
    heads = [images, "ms per image", "times Pillow", "without copies", "times Pillow", *_ERRORS]
    pattern = ".3f" if images == PHOTOS else ".1f"
    lines = []
    for name in whole:
        cells = [name]
        for measured in (whole, alone):
            cells += [rates.spread(measured[name], pattern), rates.times(measured[BASE], measured[name])]
        lines.append([*cells, *_error_cells(wrong[name])])
    return rates.table(heads, [*lines, [EXACT, "", "", "", "", *_error_cells(wrong[EXACT])]])


def plate_table(rows: list[rates.Row]) -> str:
    wrong = errors_of(rows, PLATE)
    lines = [[name, *_error_cells(wrong[name])] for name in [*BACKENDS, EXACT] if name in wrong]
    return rates.table([PLATE, *_ERRORS], lines)


_ERRORS = ("PSNR, dB", "max. error", "mean error")


def _error_cells(row: rates.Row) -> list[str]:
    return [f"{float(row['psnr_db']):.1f}", f"{float(row['max_error']):.1f}", f"{float(row['mean_error']):.2f}"]


def summary(rows: list[rates.Row]) -> str:
    timed = [row for row in rows if row["round"]]
    counts = {row["set"]: row["images"] for row in timed}
    found = {row["backend"]: row["version"] for row in rows if row["version"]}
    versions = [f"{name} {found[name]}" for name in BACKENDS if name in found]
    first = timed[0]
    closing = [
        f"{rates.rounds(timed)}, one thread, {first['clock']}; {counts[PHOTOS]} photographs "
        f"({rates.photographs(first)}) and {counts[LARGE]} of them enlarged to 4000×3000, to {first['size']} px along "
        "the shorter side.",
        f"{rates.machine(first)}, Python {first['python']}.",
        "; ".join(versions) + ".",
    ]
    return "\n\n".join([speed_table(rows, PHOTOS), speed_table(rows, LARGE), plate_table(rows), "\n".join(closing)])


def start_peers(stack: ExitStack, asked: argparse.Namespace) -> dict[str, Peer]:
    """Start a process for each backend whose environment is available."""
    pythons = {
        "sse4": asked.sse4_python, "avx2": asked.avx2_python, "pillow12": asked.pillow12_python,
        "vips": asked.vips_python or sys.executable,
    }  # fmt: skip
    peers = {}
    for name, (backend, environment) in BACKENDS.items():
        python = pythons.get(environment, sys.executable)
        started = stack.enter_context(peer(python, backend)) if python else None
        if started is None or "missing" in started.hello:
            print(f"skipping {name}: its environment is missing", file=sys.stderr)
            continue
        if environment in ("sse4", "avx2") and "post" not in started.hello["version"]:
            raise SystemExit(f"--{environment}-python: expected pillow-simd in {python}, got Pillow")
        peers[name] = started
    return peers


def measure_all(asked: argparse.Namespace) -> None:
    photos = choose(find_photos(asked.source), asked.images, asked.size)
    facts = {**conditions(photos), "clock": "CPU time of the process"}
    sets = make_sets(photos, asked.work / "resizers", asked.large)
    with ExitStack() as stack:
        peers = start_peers(stack, asked)
        far = errors(peers, sets, asked.size)

        def run(images: Set, name: str) -> Iterator[measuring.Columns]:
            times = peers[name].ask(folder=str(images.folder), size=asked.size)
            spent = {
                column.replace("_s", "_ms"): round(seconds / images.count * 1e3, 4) for column, seconds in times.items()
            }
            named = {"set": images.name, "backend": name, "version": peers[name].hello["version"]}
            yield named | {"images": images.count, "size": asked.size} | spent | far[images.name, name]

        timed = {f"{images.name}, {name}": partial(run, images, name) for images, name in product(sets[:2], peers)}
        measuring.in_rounds(timed, asked, facts, progress="resize_ms")
    shutil.rmtree(asked.work / "resizers")
    rows: list[dict[str, Any]] = [*rates.read(asked.csv)]
    date = rows[0]["date"]
    for (images, name), wrong in far.items():  # not timed: the zone plate and the reference
        if images == PLATE or name == EXACT:
            version = peers[name].hello["version"] if name in peers else ""
            rows.append({"date": date, "set": images, "backend": name, "version": version} | wrong | facts)
    rates.write(asked.csv, rows)


def main() -> None:
    arguments = measuring.parser(__doc__, __file__, repeats=15)
    simd = "interpreter of an environment made by tools/install_pillow_simd.sh VENV"
    arguments.add_argument("--sse4-python", type=Path, metavar="PYTHON", help=f"{simd} sse4")
    arguments.add_argument("--avx2-python", type=Path, metavar="PYTHON", help=f"{simd} avx2")
    arguments.add_argument("--pillow12-python", type=Path, metavar="PYTHON", help="interpreter with Pillow 12")
    arguments.add_argument("--vips-python", type=Path, metavar="PYTHON", help="interpreter with pyvips")
    arguments.add_argument("--images", type=int, default=100, help="photographs to resize")
    arguments.add_argument("--large", type=int, default=4, help="photographs to enlarge to 12 megapixels first")
    arguments.add_argument("--size", type=int, default=256)
    measuring.run(arguments, measure_all, summary, minutes=2)


if __name__ == "__main__":
    main()
