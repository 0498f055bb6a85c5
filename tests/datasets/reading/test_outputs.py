"""What a dataset gives of an image: PIL images that decode only what is asked of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pictures import smooth_image
from presize.codecs.encode import encode
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.stored_value import decode_value
from presize.datasets.reading.outputs import LazyImage, to_output
from presize.errors import DatasetError
from presize.options import MAX_PIXELS, Color, ImageOptions

HEIGHT, WIDTH = 150, 210
VALUE = encode(smooth_image(HEIGHT, WIDTH, seed=1), ImageOptions())
GREY = encode(smooth_image(HEIGHT, WIDTH, seed=1)[:, :, 0], ImageOptions(color="gray"))


def lazy(value: bytes = VALUE, color: Color = "rgb") -> LazyImage:
    return LazyImage(value, color, (HEIGHT, WIDTH), MAX_PIXELS, lambda error: DatasetError(f"damaged: {error}"))


def plain(value: bytes = VALUE, color: Color = "rgb") -> Image.Image:
    return Image.fromarray(decode_value(memoryview(value), "jpeg", color, (HEIGHT, WIDTH)))


USES: list[tuple[str, Callable[[Image.Image], Any]]] = [
    ("an array", lambda image: np.asarray(image).tobytes()),
    ("bytes", lambda image: image.tobytes()),
    ("a pixel", lambda image: image.getpixel((3, 4))),
    ("a copy", lambda image: image.copy().tobytes()),
    ("copy.copy", lambda image: copy.copy(image).tobytes()),
    ("a pickle", lambda image: pickle.loads(pickle.dumps(image)).tobytes()),
    ("a resize", lambda image: image.resize((30, 20)).tobytes()),
    ("a crop", lambda image: image.crop((10, 20, 150, 90)).tobytes()),
    ("a crop of all", lambda image: image.crop().tobytes()),
    ("a crop that reaches outside", lambda image: image.crop((-5, 20, 300, 90)).tobytes()),
    ("a crop of fractions", lambda image: image.crop((10.5, 20.4, 150.5, 90.6)).tobytes()),
    ("an empty crop", lambda image: image.crop((10, 10, 10, 10)).size),
    ("two crops", lambda image: [image.crop((x, 1, x + 9, 20)).tobytes() for x in (5, 90)]),
    ("grey", lambda image: image.convert("L").tobytes()),
    ("a drawing", lambda image: (image.putpixel((0, 0), 0), image.tobytes())[1]),
]


@pytest.mark.parametrize("value", [VALUE, GREY], ids=["rgb", "grey"])
@pytest.mark.parametrize("use", [row[1] for row in USES], ids=[row[0] for row in USES])
def test_a_lazy_image_is_used_as_any_other(use: Callable[[Image.Image], Any], value: bytes) -> None:
    color: Color = "rgb" if value is VALUE else "keep"
    ours, theirs = lazy(value, color), plain(value, color)
    assert (ours.size, ours.mode) == (theirs.size, theirs.mode)
    assert use(ours) == use(theirs)


def test_a_lazy_image_equals_a_plain_one_of_its_pixels() -> None:
    assert lazy() == plain() and plain() == lazy() and lazy() == lazy()
    assert lazy() != plain().crop((0, 0, 9, 9)) and lazy() != "an image"


@pytest.mark.skipif(not jpeg_decoder.is_available(), reason="_jpeg_decoder.c is not compiled here, or off")
def test_what_is_cropped_from_is_not_decoded_until_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = []
    decode = jpeg_decoder.decode

    def watched(data: Any, mode: Any, shape: Any, box: Any = None, buffer: Any = None) -> Any:
        boxes.append(box)
        return decode(data, mode, shape, box, buffer)

    monkeypatch.setattr(jpeg_decoder, "decode", watched)
    image = lazy()
    first = image.crop((16, 32, 80, 64))
    assert boxes == [(32, 16, 32, 64)] and type(first) is Image.Image
    for _ in range(2):
        image.crop((16, 32, 80, 64))
    assert boxes[1:] == [(0, 0, HEIGHT, WIDTH)], "who crops again may do so often"


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_lazy_image_is_the_same_without_the_compiled_decoder(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = lazy().crop((10, 20, 150, 90)).tobytes()
    if not is_compiled:
        monkeypatch.setattr(jpeg_decoder, "decode", lambda *_, **__: None)
    assert lazy().crop((10, 20, 150, 90)).tobytes() == expected


def test_damaged_pixels_are_named_when_they_are_needed_and_a_damaged_header_at_once() -> None:
    image = lazy(VALUE[: len(VALUE) // 2])
    assert image.size == (WIDTH, HEIGHT)
    with pytest.raises(DatasetError, match="damaged: "):
        image.crop((0, 0, 200, 150))
    with pytest.raises(DatasetError, match="damaged: "):
        image.load()
    with pytest.raises(ValueError):
        lazy(b"no image")
    with pytest.raises(ValueError, match="the index says"):
        LazyImage(VALUE, "rgb", (HEIGHT, WIDTH + 1), MAX_PIXELS, DatasetError)
    with pytest.raises(ValueError, match="max_pixels"):
        LazyImage(VALUE, "rgb", (HEIGHT, WIDTH), 100, DatasetError)


@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7)])
def test_a_pil_image_has_its_own_copy_of_the_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    image = to_output(pixels[:, ::-1], "pil")
    expected = pixels[:, ::-1].copy()
    pixels[...] = 0
    assert np.array_equal(np.asarray(image), expected)
