"""How fast each library resizes, and how far its pixels are from those of exact arithmetic.

    python benchmarks/codecs.py PHOTOS --sse4-python SSE4_ENV/bin/python --avx2-python AVX2_ENV/bin/python \\
        --vips-python VIPS_ENV/bin/python

Every library gets the same arrays of decoded pixels, in a process of its own that stays for the whole
measurement. They take turns, in random order, on one set of images at a time. Replaces results/codecs.csv
and prints a table; asserts nothing about times.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import codec_rates
import numpy as np
import rates
import simplejpeg
from conditions import conditions, find_photos
from PIL import Image

from presize import options
from presize.codecs import resize

_HERE = Path(__file__).parent
_LARGE = (3000, 4000)
_PLATE = 1024

Pixels = np.ndarray


@dataclass(frozen=True)
class Set:
    """Images to resize: `count` of them, as files that numpy maps."""

    name: str
    folder: Path
    count: int


class Peer:
    """A process of peers/resizers.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.hello = self._answer()

    def ask(self, **question: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self._process.args))} ended")  # type: ignore[arg-type]
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def peer(python: Path, backend: str) -> Iterator[Peer]:
    command = [str(python), str(_HERE / "peers" / "resizers.py"), backend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Peer(process)


def reference(pixels: Pixels, height: int, width: int) -> Pixels:
    """Antialiased bicubic (a = -0.5) in 64-bit floating point, (height, width, 3), not rounded, cut to 0 to 255.

    The weights are those of Pillow and of torchvision's antialias=True: the cubic convolution, as wide as
    the reduction, at the centres of the pixels, and adding up to 1 inside the image.
    """
    rows, columns = weights(pixels.shape[0], height), weights(pixels.shape[1], width)
    # Axis by axis over two-dimensional products: the fastest way to multiply in numpy.
    tall = rows @ pixels.astype(np.float64).reshape(pixels.shape[0], -1)
    wide = columns @ tall.reshape(height, pixels.shape[1], 3).transpose(1, 0, 2).reshape(pixels.shape[1], -1)
    return np.clip(wide.reshape(width, height, 3).transpose(1, 0, 2), 0, 255)


def weights(source: int, target: int) -> np.ndarray:
    """A matrix (target, source) whose rows add up to 1."""
    scale = source / target
    stretch = max(scale, 1.0)
    centres = (np.arange(target) + 0.5) * scale
    x = np.abs((np.arange(source)[None, :] + 0.5 - centres[:, None]) / stretch)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    values = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def error(results: list[Pixels], references: list[Pixels]) -> dict[str, object]:
    """Of all images of a set together: every pixel counts the same."""
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
    """Rings that get finer outwards, to the finest that pixels can show: what aliases is seen at once."""
    squared = (np.arange(_PLATE) - (_PLATE - 1) / 2) ** 2
    rings = 127.5 + 127.5 * np.cos(math.pi * (squared[:, None] + squared) / _PLATE)
    return np.repeat(np.rint(rings).astype(np.uint8)[:, :, None], 3, axis=2)


def make_sets(photos: list[Path], work: Path, large: int) -> list[Set]:
    """Decoded photographs, some of them enlarged to 12 megapixels, and a zone plate."""
    shutil.rmtree(work, ignore_errors=True)
    made = []
    decoded = [simplejpeg.decode_jpeg(path.read_bytes(), "RGB") for path in photos]
    enlarged = [
        np.asarray(Image.fromarray(pixels).resize(_LARGE[::-1], Image.Resampling.LANCZOS)) for pixels in decoded[:large]
    ]
    sets = {codec_rates.PHOTOS: decoded, codec_rates.LARGE: enlarged, codec_rates.PLATE: [zone_plate()]}
    for number, (name, images) in enumerate(sets.items()):
        folder = work / str(number)
        folder.mkdir(parents=True)
        for place, pixels in enumerate(images):
            np.save(folder / f"{place:04}.npy", pixels)
        made.append(Set(name, folder, len(images)))
    return made


def choose(photos: list[Path], count: int, size: int) -> list[Path]:
    """`count` of those that shrink, evenly spread."""
    shrinking = []
    for path in photos:
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(path.read_bytes())
        except ValueError:  # no JPEG inside
            continue
        if min(height, width) > size:
            shrinking.append(path)
    if not shrinking:
        raise SystemExit(f"no JPEGs whose shorter side is more than {size} px")
    return [shrinking[place] for place in np.unique(np.linspace(0, len(shrinking) - 1, count).astype(int))]


def load(folder: Path) -> list[Pixels]:
    return [np.load(path) for path in sorted(folder.glob("*.npy"))]


def errors(peers: dict[str, Peer], sets: list[Set], size: int) -> dict[tuple[str, str], dict[str, object]]:
    """By set and back-end. Raises SystemExit when what is measured is not what presize does."""
    found = {}
    for images in sets:
        sources, out = load(images.folder), images.folder / "out"
        targets = [resize.target(options.Size(*pixels.shape[:2]), options.Size(size, size), "shorter", False)
                   for pixels in sources]  # fmt: skip
        exact = [reference(pixels, *target.size) for pixels, target in zip(sources, targets, strict=True)]
        found[images.name, codec_rates.EXACT] = error([np.rint(pixels).astype(np.uint8) for pixels in exact], exact)
        for name, process in peers.items():
            out.mkdir()
            process.ask(folder=str(images.folder), size=size, out=str(out))
            results = load(out)
            shutil.rmtree(out)
            found[images.name, name] = error(results, exact)
            if name in codec_rates.OURS:
                ours = codec_rates.OURS[name]
                for pixels, target, result in zip(sources, targets, results, strict=True):
                    if not np.array_equal(resize.resize(pixels, target, "bicubic", ours), result):
                        raise SystemExit(f"{name}: presize.codecs.resize gives other pixels than peers/resizers.py")
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="PHOTOS", help="searched recursively for JPEGs")
    simd = "that of an environment made by tools/install_pillow_simd.sh VENV"
    parser.add_argument("--sse4-python", type=Path, metavar="PYTHON", help=f"{simd} sse4")
    parser.add_argument("--avx2-python", type=Path, metavar="PYTHON", help=f"{simd} avx2")
    parser.add_argument("--vips-python", type=Path, metavar="PYTHON", help="that of an environment with pyvips")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    parser.add_argument("--images", type=int, default=100, help="photographs to resize")
    parser.add_argument("--large", type=int, default=4, help="photographs to enlarge to 12 megapixels first")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the back-ends")
    parser.add_argument("--csv", type=Path, default=_HERE / "results" / "codecs.csv", help="replaced")
    return parser.parse_args()


def main() -> None:
    asked = parse()
    photos = find_photos(asked.source)
    photos = choose(photos, asked.images, asked.size)
    facts = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **conditions(photos)}
    facts["clock"] = "CPU time of the process"
    sets = make_sets(photos, asked.work / "codecs", asked.large)
    pythons = {"sse4": asked.sse4_python, "avx2": asked.avx2_python, "vips": asked.vips_python or sys.executable}
    order = random.Random(asked.seed)
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        peers = {}
        for name, (backend, environment) in codec_rates.BACKENDS.items():
            python = pythons.get(environment, sys.executable)
            started = stack.enter_context(peer(python, backend)) if python else None
            if started is None or "missing" in started.hello:
                print(f"left out: {name}, whose environment was not given", file=sys.stderr)
                continue
            if environment in ("sse4", "avx2") and "post" not in started.hello["version"]:
                raise SystemExit(f"--{environment}-python: {python} has Pillow itself, not pillow-simd")
            peers[name] = started
        far = errors(peers, sets, asked.size)
        for number in range(asked.repeats):
            for images in sets[:2]:  # the zone plate is there for its errors
                for name in order.sample(sorted(peers), len(peers)):
                    times = peers[name].ask(folder=str(images.folder), size=asked.size)
                    rows.append(
                        {"set": images.name, "backend": name, "version": peers[name].hello["version"]}
                        | {"round": number, "images": images.count, "size": asked.size}
                        | {column.replace("_s", "_ms"): round(seconds / images.count * 1e3, 4)
                           for column, seconds in times.items()}
                        | far[images.name, name] | facts
                    )  # fmt: skip
            print(f"round {number + 1} of {asked.repeats}", file=sys.stderr)
    # The rows without times are those of errors alone.
    untimed = [key for key in far if key[0] == codec_rates.PLATE or key[1] == codec_rates.EXACT]
    for name, backend in untimed:
        version = peers[backend].hello["version"] if backend in peers else ""
        rows.append(
            {"set": name, "backend": backend, "version": version, "size": asked.size} | far[name, backend] | facts
        )
    shutil.rmtree(asked.work / "codecs")
    rates.write(asked.csv, rows)
    print(codec_rates.summary(rates.read(asked.csv)))


if __name__ == "__main__":
    main()
