"""The C code on ARM64, cross-compiled and emulated: the pixels equal those of libjpeg-turbo and Pillow on this
machine."""

from __future__ import annotations

import random
import runpy
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import pillow_model
from effort import examples
from jpegs import compiled
from presize.codecs import pillow_resize
from presize.codecs.golden import decoder_images
from presize.codecs.jpeg import decoder as jpeg_decoder

ROOT = Path(__file__).parents[2]
FUZZ = runpy.run_path(str(ROOT / "tools" / "fuzz_jpeg_decoder.py"))
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"

emulated = pytest.mark.skipif(
    not shutil.which(COMPILER) or not shutil.which(EMULATOR),
    reason=f"needs {COMPILER} and {EMULATOR}: apt-get install gcc-aarch64-linux-gnu qemu-user-static",
)
pytestmark = [pytest.mark.slow, emulated, compiled]


def compiled_program(name: str, sources: list[str], folder: Path) -> Path:
    """Compile a program for ARM64."""
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-ffp-contract=off"]
    main = ROOT / "tests" / "codecs" / f"{name}.c"
    subprocess.run([COMPILER, *flags, main, *sources, "-lm", "-o", folder / name], check=True)
    return folder / name


@pytest.fixture(scope="module")
def decode_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_program("decode_records", FUZZ["SOURCES"][1:], tmp_path_factory.mktemp("arm64"))


@pytest.fixture(scope="module")
def resize_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [str(path) for path in (ROOT / "presize" / "codecs" / "resampling").glob("*.c")]
    return compiled_program("resize_records", sources, tmp_path_factory.mktemp("arm64"))


def record(data: bytes, channels: int, scale: int, shape: tuple[int, int], box: tuple[int, int, int, int]) -> bytes:
    """Return a record for decode_records.c: the input, whether the decoder accepts it here, libjpeg-turbo's pixels, and
    the scan in tiles of three MCUs."""
    top, left, height, width = box
    out = np.empty((height, width, channels), np.uint8)
    decoder: Any = jpeg_decoder.compiled.trusted()
    done = decoder.decode(data, out, channels, shape, box, scale)
    if done:
        out = FUZZ["expected"](data, FUZZ["MODES"][channels], shape, box, scale)
    again = np.zeros(len(data) + 8192, np.uint8)
    scan = again[: decoder.recode(data, again, 3)].tobytes()
    head = channels, scale, *shape, top, left, top + height, left + width, len(data), int(done), 3, len(scan)
    return struct.pack("<12I", *head) + data + scan + (out.tobytes() if done else b"")


def records_of(data: bytes, choice: random.Random) -> list[bytes]:
    """Return records of the whole image and a box of it, at each scale."""
    height, width = shape = FUZZ["simplejpeg"].decode_jpeg_header(data)[:2]
    found = []
    for scale in (1, 2, 4, 8) if width > 8 else (1,):
        rows, columns = -(-height // scale), -(-width // scale)
        top, left = choice.randrange(rows), choice.randrange(columns)
        box = (top, left, choice.randint(1, rows - top), choice.randint(1, columns - left))
        found.append(record(data, choice.choice([1, 3, 4]), scale, shape, (0, 0, rows, columns)))
        found.append(record(data, choice.choice([1, 3, 4]), scale, shape, box))
    return found


def check(program: Path, records: list[bytes], folder: Path) -> None:
    """Assert that an emulated processor yields the pixels of these records, and not those of one with another byte."""
    wrong = records[-1][:-1] + bytes((records[-1][-1] ^ 1,))
    path = folder / "records"
    for tried, said in ((records, f"{len(records)} records"), ([*records[:1], wrong], "record 1: other pixels")):
        path.write_bytes(b"".join(tried))
        ran = subprocess.run([EMULATOR, program, path], capture_output=True, text=True, check=False)
        assert ran.stdout.strip() == said, ran.stderr


def resize_record(choice: random.Random) -> bytes:
    """Return a record for resize_records.c: a random image, and its resized form by definition."""
    height, width, to_height, to_width = (choice.randint(2, choice.choice([9, 90])) for _ in range(4))
    channels, filter = choice.choice([1, 2, 3, 4]), choice.choice(get_args(pillow_resize.Filter))
    noise = np.random.default_rng(choice.getrandbits(30))
    pixels = noise.integers(-64, 320, (height, width, channels)).clip(0, 255).astype(np.uint8)
    left, top = (float(np.float32(choice.uniform(0.01, side - 1))) for side in (width, height))
    box = (left, top, float(width), float(height))
    mirrored, flipped, vertical_first = (choice.random() < 0.5 for _ in range(3))
    shown = pixels[:, ::-1] if mirrored else pixels
    alpha = channels == 4 and not vertical_first
    result = pillow_model.resize(shown, (to_height, to_width), filter, box, alpha=alpha)
    if vertical_first:  # for any sizes
        rows = pillow_model.resize(shown, (to_height, width), filter, (0, top, width, height))
        result = pillow_model.resize(rows, (to_height, to_width), filter, (left, 0, width, to_height))
    number = get_args(pillow_resize.Filter).index(filter)
    head = (height, width, channels, to_height, to_width, number, mirrored, flipped, vertical_first, alpha)
    return struct.pack("<10i4f", *head, *box) + pixels.tobytes() + (result[:, ::-1] if flipped else result).tobytes()


@pytest.fixture
def choice() -> random.Random:
    """Return a generator that differs in each run."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)


def test_images_have_the_same_pixels_on_arm64(decode_records: Path, tmp_path: Path, choice: random.Random) -> None:
    images = [FUZZ["jpeg"](FUZZ["picture"](choice), choice) for _ in range(examples(150))]
    records = [one for data in [*images, *decoder_images().values()] for one in records_of(data, choice)]
    check(decode_records, records, tmp_path)


def test_images_are_resized_to_the_same_bytes_on_arm64(
    resize_records: Path, tmp_path: Path, choice: random.Random
) -> None:
    check(resize_records, [resize_record(choice) for _ in range(examples(150))], tmp_path)
