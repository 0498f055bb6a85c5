"""A raw folder of synthetic, photo-like images, tuned to 1,000 photographs of ImageNet, to try presize without data.

A picture is painted from back to front, after the dead-leaves model of natural scenes: out-of-focus leaves of all
sizes, the subject that shows the class, leaves in focus; then texture with a 1/f spectrum, shading and sensor noise.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from presize.errors import SourceError
from presize.options import SampleOptions, check_type
from presize.system.files import expanded, made_folder, reason_and_fix

HUES = "red orange yellow lime green jade cyan azure blue violet magenta rose".split()
"""Names of hues, in twelve equal steps around the colour circle."""
SUBJECTS = {"disc": (32, 1.0), "star": (10, 0.45), "square": (4, 1.0), "triangle": (3, 1.0), "burst": (20, 0.6)}
"""Shapes that show a class: the number of corners on a circle, and the radius of every second one relative to it."""
FIELD_SIDE = 1024
"""Height and width of the noise fields that texture is cut from. They repeat without a seam."""

Light = tuple[float, float, float]
"""The light of a picture: mean and standard deviation of luminance, 0 to 255, and warmth, which is below 0 for blue."""

ORIENTATION = 0x0112  # the EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""Transposition of an upright picture before it is stored with an EXIF orientation. Readers undo it."""


def make_samples(
    folder: Path, options: SampleOptions = SampleOptions(), on_image: Callable[[], None] | None = None
) -> int:
    """Write a sample folder and return its number of files. `on_image` is called after each file. Raises SourceError if
    the folder is not empty, or cannot be written."""
    folder = Path(expanded(folder))
    check_type("options", options, SampleOptions)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise SourceError(f"{folder} is not empty; choose a new or empty folder")
        with made_folder(folder):
            _write(folder, options, on_image)
    except OSError as error:
        fix = reason_and_fix(error, "run again with a new or empty folder")
        raise SourceError(f"cannot write {error.filename or folder}: {fix}") from None
    return options.images


def _write(folder: Path, options: SampleOptions, on_image: Callable[[], None] | None) -> None:
    classes = [folder / class_name(label, options.classes) for label in range(options.classes)]
    try:
        for each in classes:
            each.mkdir()
        for index in range(options.images):
            path, content = sample_file(options, index)
            (folder / path).write_bytes(content)
            if on_image:
                on_image()
    except BaseException:
        for each in classes:
            shutil.rmtree(each, ignore_errors=True)
        raise


def class_name(label: int, classes: int) -> str:
    """Return the folder name of a class, such as ``07-blue-square``. Names sort by class number."""
    return f"{label:0{len(str(classes - 1))}}-{HUES[round(12 * _hue(label)) % 12]}-{_subject(label)}"


def sample_file(options: SampleOptions, index: int) -> tuple[str, bytes]:
    name = class_name(options.label(index), options.classes)
    path = f"{name}/{index:0{max(4, len(str(options.images - 1)))}}"
    rng = np.random.default_rng((options.seed, index, 1))
    broken = index * options.broken // options.images
    if (index + 1) * options.broken // options.images > broken:
        return f"{path}.jpg", broken_bytes(picture(options, index), broken, rng)
    suffix, content = encoded(picture(options, index), rng.random() < options.rotated, rng)
    return path + suffix, content


def encoded(pixels: NDArray[np.uint8], rotated: bool, rng: np.random.Generator) -> tuple[str, bytes]:
    image, stream, draw = Image.fromarray(pixels), io.BytesIO(), rng.random(4).tolist()
    if draw[0] < 0.02 and not rotated:
        if draw[1] < 0.5:
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        image.save(stream, "PNG", compress_level=1)
        return ".png", stream.getvalue()
    if draw[0] < 0.04 and not rotated:
        image.save(stream, "WEBP", quality=85, method=0)
        return ".webp", stream.getvalue()
    exif = Image.Exif()
    if rotated:
        exif[ORIENTATION] = int(rng.integers(2, 9))
        image = image.transpose(TURNS[exif[ORIENTATION]])
    if draw[3] < 0.03:
        image = image.convert("L")
    image.save(
        stream,
        "JPEG",
        quality=max(60, 97 - int(rng.exponential(4))),
        subsampling="4:4:4" if draw[1] < 0.2 else "4:2:0",
        progressive=draw[2] < 0.05,
        exif=exif if rotated else b"",
    )
    return ".jpg", stream.getvalue()


def broken_bytes(pixels: NDArray[np.uint8], turn: int, rng: np.random.Generator) -> bytes:
    """Return the content of a broken file: half an image, nothing, HTML or random bytes, for `turn` modulo 4."""
    if turn % 4 == 0:
        Image.fromarray(pixels).save(stream := io.BytesIO(), "JPEG", quality=90)
        return stream.getvalue()[: stream.tell() // 2]
    return (b"", b"<!DOCTYPE html>\n<title>404 Not Found</title>\n", rng.bytes(20_000))[turn % 4 - 1]


def picture(options: SampleOptions, index: int) -> NDArray[np.uint8]:
    """Return the upright pixels of file `index`: uint8 (height, width, 3), RGB."""
    rng = np.random.default_rng((options.seed, index, 0))
    height, width = picture_size(options.long_side, rng)
    light = rng.uniform(70, 160), rng.uniform(30, 75), rng.normal(0.2, 0.9)
    softness = max(1, min(height, width) / 500)
    # The background is out of focus and has no detail, so a quarter of the size is enough.
    sky, ground = _colours(light, 2, rng)
    canvas: NDArray[Any] = np.full((-(-height // 4), -(-width // 4), 4), sky, np.uint8)
    canvas[int(len(canvas) * rng.uniform(0.2, 0.9)) :] = ground
    _paint_leaves(canvas, rng, 30, 0.06, light)
    canvas = cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.4, 3) * softness)
    canvas = cv2.resize(canvas, (width, height), interpolation=cv2.INTER_LINEAR)
    for _ in range(rng.integers(1, 4)):
        _paint_subject(canvas, rng, options.label(index))
    _paint_leaves(canvas, rng, int(np.exp(rng.uniform(2.5, 7))), 0.008, light)
    canvas = cv2.GaussianBlur(canvas, (0, 0), rng.uniform(0.3, 0.85) * softness)

    def noise(alpha: float, strength: float) -> NDArray[np.float32]:
        field = _field(options.seed, float(alpha))
        if max(height, width) > FIELD_SIDE:
            field = np.tile(field, [-(-height // FIELD_SIDE), -(-width // FIELD_SIDE)])
        top, left = (int(rng.integers(full - own + 1)) for full, own in zip(field.shape, (height, width), strict=True))
        return field[top : top + height, left : left + width] * np.float32(strength)

    scene = canvas[..., :3].astype(np.float32)
    texture = noise(rng.choice((0.6, 0.8, 1.0, 1.3)), np.exp(rng.uniform(1.5, 4.5)) / 128)
    scene[..., 0] += canvas[..., 3] * texture
    scene[..., 0] += noise(2.0, rng.uniform(5, 25)) + noise(0.0, np.exp(rng.uniform(-1.5, 2.2)))
    scene[..., 1] += noise(1.2, 4)
    scene[..., 2] += noise(1.2, 6)
    return np.asarray(cv2.cvtColor(np.clip(scene, 0, 255).astype(np.uint8), cv2.COLOR_YCrCb2RGB), np.uint8)


def picture_size(long_side: int, rng: np.random.Generator) -> tuple[int, int]:
    """Draw a (height, width) as in ImageNet: mostly 4:3 or 3:2 at `long_side`, some odd, small or large."""
    kind = rng.random()
    aspect = rng.choice((4 / 3, 4 / 3, 3 / 2)) if kind < 0.65 else rng.uniform(1, 1.7)
    usual, odd, small, large = 1, np.exp(rng.normal(0, 0.2)), rng.uniform(0.15, 0.5), rng.uniform(1.4, 2.2)
    scale = usual if kind < 0.65 else odd if kind < 0.92 else small if kind < 0.97 else large
    long = max(8, round(long_side * scale))
    short = max(8, int(long / aspect))
    return (long, short) if rng.random() < 0.25 else (short, long)


def _colours(light: Light, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw colours (count, 4), each 0 to 255: luminance, Cr, Cb, and the strength of the texture."""
    # Natural colours differ most in lightness, then from orange to blue, least from green to magenta.
    exposure, contrast, warm = light
    luminance = rng.normal(exposure, contrast, (count, 1))
    warmth, magenta = rng.normal((warm, 0), (0.9, 0.4), (count, 2)).T
    tints = 128 + np.outer(warmth, (7, -11)) + np.outer(magenta, (8, 8))
    colours = np.hstack((luminance, tints, 255 * rng.random((count, 1)) ** 2))
    return colours.clip(0, 255)


def _paint_leaves(canvas: NDArray[Any], rng: np.random.Generator, count: int, smallest: float, light: Light) -> None:
    height, width = canvas.shape[:2]
    # Radii with density 1 / radius**3 make a scene look alike at every scale, as natural scenes do.
    radii = min(height, width) / np.sqrt(rng.uniform(0.4**-2, smallest**-2, (count, 1)))
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    for waves in (2, 3, 5):
        depth, phase = rng.normal(0, 0.35 / waves, (count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
        radii = radii * (1 + depth * np.cos(waves * angles + phase))
    outlines = _outline(radii, rng.uniform(0.15, 1, (count, 1)), rng.uniform(0, np.pi, (count, 1)))
    outlines += rng.random((count, 1, 2)) * (width, height)
    for outline, colour in zip(outlines, _colours(light, count, rng).tolist(), strict=True):
        _fill(canvas, outline, colour)


def _paint_subject(canvas: NDArray[Any], rng: np.random.Generator, label: int) -> None:
    height, width = canvas.shape[:2]
    corners, inner = SUBJECTS[_subject(label)]
    radii = np.where(np.arange(corners) % 2, inner, 1.0) * min(height, width) * rng.uniform(0.15, 0.4)
    outline = _outline(radii, rng.uniform(0.7, 1), rng.uniform(0, 2 * np.pi))
    hue = (_hue(label) + rng.normal(0, 0.015)) % 1 * 360
    hsv = np.array([[[hue, rng.uniform(0.3, 0.7), rng.uniform(0.35, 0.9)]]], np.float32)
    tone = 255 * cv2.cvtColor(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), cv2.COLOR_RGB2YCrCb)[0, 0]
    _fill(canvas, outline + rng.uniform(0.2, 0.8, 2) * (width, height), [*tone.tolist(), rng.uniform(60, 200)])


def _hue(label: int) -> float:
    """Return the hue of a class, 0 to 1 around the colour circle. Golden-ratio steps separate any number of classes."""
    return label * 0.381966 % 1


def _subject(label: int) -> str:
    return list(SUBJECTS)[label % len(SUBJECTS)]


def _outline(radii: NDArray[Any], squeeze: Any, turn: Any) -> NDArray[np.float64]:
    """Return corners (..., corners, 2), x and y, `radii` from the origin, squeezed along y, turned by `turn` rad."""
    angles = np.linspace(0, 2 * np.pi, radii.shape[-1], endpoint=False)
    x, y = radii * np.cos(angles), radii * np.sin(angles) * squeeze
    return np.stack((x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)), axis=-1)


def _fill(canvas: NDArray[Any], outline: NDArray[np.float64], colour: list[float]) -> None:
    cv2.fillPoly(canvas, [np.round(outline * 16).astype(np.int32)], colour, cv2.LINE_AA, 4)


@lru_cache(maxsize=8)
def _field(seed: int, alpha: float) -> NDArray[np.float32]:
    """Return noise of amplitude 1 / frequency**alpha: float32 (FIELD_SIDE, FIELD_SIDE), mean 0, variance 1."""
    rng = np.random.default_rng((seed, round(100 * alpha), 2))
    spectrum = np.fft.rfft2(rng.standard_normal((FIELD_SIDE, FIELD_SIDE)))
    frequency = np.hypot(np.fft.fftfreq(FIELD_SIDE)[:, None], np.fft.rfftfreq(FIELD_SIDE))
    frequency[0, 0] = 1
    field = np.fft.irfft2(spectrum * frequency**-alpha)
    return np.asarray((field - field.mean()) / field.std(), np.float32)
