"""Fuzz presize/codecs/_jpeg_decoder.c with damaged JPEGs, under the address and undefined-behaviour sanitizers.

    python tools/fuzz_jpeg_decoder.py --seconds 60

Half of the files are random, the others are damaged files of tests/fuzz/jpeg. For every file that the decoder accepts,
libjpeg-turbo must return the same pixels without a warning: for the whole file, or, if a tile index lets the decoder
skip the rest, for the tiles under the box. Recoding a file in tiles must keep its pixels. Stops at the first file that
violates this, prints its path, and exits with 1. Needs gcc and its sanitizers, on Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import simplejpeg

from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg import tiles as tiling
from presize.codecs.pillow_resize import resize, row_sink

CODECS = Path(__file__).parent.parent / "presize" / "codecs"
SOURCES = [str(CODECS / name) for name in ("_jpeg_decoder.c", "jpeg/any.c", "jpeg/avx2.c", "jpeg/avx512.c")]
CORPUS = Path(__file__).parent.parent / "tests" / "fuzz" / "jpeg"
SANITIZED = "PRESIZE_SANITIZED"
"""Environment variable with the path of the compiled module, set in the process that has the sanitizers loaded."""

FACTORS = [
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
]  # fmt: skip
MODES = {1: "GRAY", 3: "RGB", 4: "BGRX"}


def picture(choice: random.Random) -> np.ndarray:
    """Return a random picture of up to 90 × 120 pixels: smooth, noise, or black and white."""
    height, width = choice.randint(1, 90), choice.randint(1, 120)
    noise = np.random.default_rng(choice.getrandbits(30))
    kind = choice.random()
    if kind < 0.5:
        small = noise.integers(0, 256, (4, 4, 3)).astype(np.uint8)
        pixels = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    elif kind < 0.8:
        pixels = noise.integers(0, 256, (height, width, 3)).astype(np.uint8)
    else:
        pixels = (255 * noise.integers(0, 2, (height, width, 3))).astype(np.uint8)
    return np.ascontiguousarray(pixels[:, :, 0] if choice.random() < 0.15 else pixels)


def jpeg(pixels: np.ndarray, choice: random.Random) -> bytes:
    """Encode a valid JPEG, mostly with tiles and their index."""
    options = [
        cv2.IMWRITE_JPEG_QUALITY, choice.choice([1, 5, 20, 50, 75, 90, 95, 100]),
        cv2.IMWRITE_JPEG_OPTIMIZE, int(choice.random() < 0.3),
        cv2.IMWRITE_JPEG_PROGRESSIVE, int(choice.random() < 0.05),
    ]  # fmt: skip
    if pixels.ndim == 3:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, choice.choice(FACTORS)]
    if choice.random() < 0.6:
        mcus = -(-pixels.shape[1] // choice.choice([8, 16]))
        options += [cv2.IMWRITE_JPEG_RST_INTERVAL, choice.choice([1, 2, 3, 5, tiling.restart_interval(mcus)])]
    data = cv2.imencode(".jpg", pixels, options)[1].tobytes()
    return tiling.with_index(data) if choice.random() < 0.8 else data


def with_metadata(data: bytes, choice: random.Random) -> bytes:
    """Add Adobe and ICC segments, valid or not, to `data`, and sometimes remove its JFIF segment."""
    adobe = b"\xff\xee\0\x0eAdobe\0d\0\0\0\0" + bytes((choice.randrange(3),))
    parts = choice.randint(0, 2)
    profile = [b"\xff\xe2\0\x14ICC_PROFILE\0" + bytes((i + 1, parts)) + b"icc!" for i in range(choice.randint(0, 2))]
    rest = data[20:] if choice.random() < 0.3 else data[2:]
    return data[:2] + b"".join([adobe] * choice.randint(0, 1) + profile) + rest


def damaged(data: bytes, choice: random.Random) -> bytes:
    """Change, delete or insert bytes of `data` in one to five places, or truncate it; half of them in the headers."""
    broken = bytearray(data)
    for _ in range(choice.choice([1, 1, 2, 5])):
        at = choice.randrange(len(broken) if choice.random() < 0.5 else min(len(broken), 700))
        kind = choice.random()
        if kind < 0.4:
            broken[at] = choice.randrange(256)
        elif kind < 0.6:
            broken[at] ^= 1 << choice.randrange(8)
        elif kind < 0.7:
            del broken[at : at + choice.randint(1, 4)]
        elif kind < 0.8:
            broken[at:at] = bytes((choice.randrange(256),))
        elif kind < 0.9:
            del broken[at + 1 :]
        else:
            broken[at] = 0xFF
        broken = broken or bytearray(b"\xff")
    return bytes(broken)


def by_libjpeg_turbo(data: bytes | memoryview, mode: str, scale: int) -> np.ndarray:
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    return simplejpeg.decode_jpeg(data, mode, min_height=-(-height // scale), min_width=-(-width // scale))


def expected(data: bytes, mode: str, shape: tuple[int, int], box: tuple[int, int, int, int], scale: int) -> np.ndarray:
    """Decode the box with libjpeg-turbo. Raises ValueError for errors and warnings.

    `shape` is the (height, width) of the image; `box` is in pixels of the image at 1/scale; `scale` is 1, 2, 4 or 8."""
    top, left, height, width = box
    try:
        return by_libjpeg_turbo(data, mode, scale)[top : top + height, left : left + width]
    except ValueError:
        y, x = top * scale, left * scale
        whole = y, x, min(height * scale, shape[0] - y), min(width * scale, shape[1] - x)
        part = tiling.cut_jpeg(data, *whole) if whole != (0, 0, *shape) else None
        if part is None:
            raise
        y, x = part.top // scale, part.left // scale
        return by_libjpeg_turbo(part.data, mode, scale)[y : y + height, x : x + width]


def corpus(folder: Path = CORPUS) -> list[bytes]:
    """Read the files of a corpus."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def drawn(choice: random.Random, known: Sequence[bytes]) -> bytes:
    """Return a random JPEG, half of the time damaged, or a damaged `known` one."""
    if known and choice.random() < 0.5:
        return damaged(choice.choice(known), choice)
    data = jpeg(picture(choice), choice)
    if choice.random() < 0.3:
        data = with_metadata(data, choice)
    return damaged(data, choice) if choice.random() < 0.5 else data


def difference(decoder: Any, data: bytes, choice: random.Random) -> tuple[bool, str | None]:
    """Decode `data`, or a box of it, at full or reduced size, with instructions of any level. Return whether `decoder`
    accepts it, and how it then differs from libjpeg-turbo, or None if it does not."""
    height, width = choice.randint(1, 90), choice.randint(1, 120)
    with contextlib.suppress(ValueError, KeyError):
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    if height * width > 1 << 22:
        return False, None
    # Narrower images may have the same size at another scale, and simplejpeg then uses that.
    scale = choice.choice([1, 1, 2, 4, 8]) if width > 8 else 1
    shape, whole = (height, width), (-(-height // scale), -(-width // scale))
    box = (0, 0, *whole)
    if choice.random() < 0.5:
        rows, columns = choice.randint(1, whole[0]), choice.randint(1, whole[1])
        box = (choice.randint(0, whole[0] - rows), choice.randint(0, whole[1] - columns), rows, columns)
    channels = choice.choice([*MODES])
    out = np.empty((*box[2:], channels), np.uint8)
    level = decoder.limit(choice.randrange(3))
    accepted = decoder.decode(data, out, channels, shape, box, scale)
    decoder.limit(2)
    if not accepted:
        return False, None
    try:
        if np.array_equal(out, expected(data, MODES[channels], shape, box, scale)):
            return True, None
        what = "different pixels"
    except ValueError as error:
        what = str(error)
    return True, f"box {box} at 1/{scale}, {channels} channels, level {level}: {what}"


def recoding_difference(decoder: Any, data: bytes, choice: random.Random) -> str | None:
    """Return how the pixels change when `data` is recoded in tiles; None if they do not, or if it is not recoded."""
    level = decoder.limit(choice.randrange(3))
    with mock.patch.object(jpeg_decoder.compiled, "module", decoder):
        tiled = tiling.recoded(data)
    decoder.limit(2)
    if tiled is data:
        return None
    try:
        same = np.array_equal(simplejpeg.decode_jpeg(tiled), simplejpeg.decode_jpeg(data, strict=False))
        what = None if same else "different pixels"
    except ValueError as error:
        what = str(error)
    return what and f"recoded level {level}: {what}"


def resized_difference(decoder: Any, data: bytes, choice: random.Random) -> str | None:
    """Return how `data`, resized while decoding, differs from the decoded image, resized; None if it does not."""
    with contextlib.suppress(ValueError, KeyError):
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        scale, channels = choice.choice([1, 1, 2, 4, 8]), choice.choice([*MODES])
        whole = (-(-height // scale), -(-width // scale))
        if height * width > 1 << 22:
            return None
        pixels = np.empty((*whole, channels), np.uint8)
        resized = np.empty((*choice.sample(range(1, 90), 2), channels), np.uint8)
        sink = row_sink(whole, resized, "bicubic", (0, 0, whole[1], whole[0]))
        if sink is None:
            return None
        accepted = decoder.decode(data, pixels, channels, (height, width), (0, 0, *whole), scale)
        if decoder.decode_into(data, sink, channels, (height, width), scale) != accepted:
            return f"1/{scale}, {channels} channels: only one of decode and decode_into accepts it"
        if accepted and not np.array_equal(resized, resize(pixels, resized.shape[:2], "bicubic")):
            return f"1/{scale}, {channels} channels, to {resized.shape}: different pixels"
    return None


def check(decoder: Any, data: bytes, choice: random.Random) -> bool:
    """Return whether `decoder` accepts `data`. Exit if its result is wrong."""
    accepted, wrong = difference(decoder, data, choice)
    wrong = wrong or recoding_difference(decoder, data, choice) or resized_difference(decoder, data, choice)
    if wrong:
        place = Path(tempfile.mkdtemp(prefix="presize-fuzz-"), "bad.jpg")
        place.write_bytes(data)
        sys.exit(f"{place}: {wrong}")
    return accepted


def fuzz(decoder: Any, seed: int, seconds: float) -> tuple[int, int]:
    """Fuzz for some seconds. Return the number of files tried, and the number that the decoder accepted."""
    choice = random.Random(seed)
    known = corpus()
    results = [check(decoder, data, choice) for data in known for _ in range(3)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        results.append(check(decoder, drawn(choice, known), choice))
    return len(results), sum(results)


def sanitized(folder: str, sources: Sequence[str] = SOURCES) -> dict[str, str]:
    """Compile a module into `folder`, and return the environment of a process that runs it under the sanitizers."""
    module = Path(folder, Path(sources[0]).stem + ".so")
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    headers = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run(["gcc", *flags, "-shared", "-fPIC", headers, *sources, "-lm", "-o", str(module)], check=True)
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        **os.environ,
        SANITIZED: str(module),
        "LD_PRELOAD": " ".join(libraries),
        # Python itself leaks. New memory is filled with a fixed byte, so that runs are reproducible.
        "ASAN_OPTIONS": "detect_leaks=0:max_malloc_fill_size=1000000000:malloc_fill_byte=165",
    }


def under_sanitizers(description: str | None, sources: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """Compile `sources` with the sanitizers, and return the module and the options of the command line. The process
    restarts itself with the sanitizers loaded."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if shutil.which("gcc") is None:
        sys.exit("gcc and its sanitizers are missing: apt-get install gcc python3-dev")
    if SANITIZED not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            environment = sanitized(folder, sources)
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)
    spec = importlib.util.spec_from_file_location(Path(sources[0]).stem, os.environ[SANITIZED])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, options


def try_until_the_end(options: argparse.Namespace, wrong: Callable[[random.Random], str | None], what: str) -> None:
    """Call `wrong` with random choices for some seconds. Exit when it returns an error."""
    choice, tried, end = random.Random(options.seed), 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        found = wrong(choice)
        if found:
            sys.exit(f"seed {options.seed}, number {tried}: {found}")
        tried += 1
    print(f"{tried} {what}, no differences")


def main() -> None:
    module, options = under_sanitizers(__doc__, SOURCES)
    tried, accepted = fuzz(module, options.seed, options.seconds)
    print(f"{tried} JPEGs, {accepted} of them accepted, no differences")


if __name__ == "__main__":
    main()
