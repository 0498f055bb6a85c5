"""presize.decode_jpeg: the pixels of libjpeg-turbo, whichever decoder makes them, and one kind of error."""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from pictures import saved, smooth_image
from presize import ImageError, OptionError, decode_jpeg


def encoded(mode: str = "RGB", **options: object) -> bytes:
    return saved(Image.fromarray(smooth_image(61, 83, 1)).convert(mode), "JPEG", **options)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 5}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("gray", [False, True])
def test_pixels_are_those_of_libjpeg_turbo(options: dict[str, object], mode: str, gray: bool) -> None:
    data = encoded(mode, **options)
    expected = simplejpeg.decode_jpeg(data, "GRAY" if gray else "RGB")
    expected = expected[:, :, 0] if gray else expected
    for view in (data, memoryview(data)):
        pixels = decode_jpeg(view, gray=gray)
        assert pixels.dtype == np.uint8 and np.array_equal(pixels, expected)
    assert np.array_equal(decode_jpeg(data, gray=gray, box=(7, 20, 31, 50)), expected[7:38, 20:70])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a JPEG"),
        (b"\x89PNG" * 20, "not a JPEG"),
        (encoded()[:300], "JPEG"),
        (encoded()[:-500], "JPEG"),
    ],
)
def test_what_cannot_be_decoded_is_an_image_error(data: bytes, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        decode_jpeg(data)


def test_a_size_is_checked_before_memory_is_allocated() -> None:
    with pytest.raises(ImageError, match="83 x 61 pixels, more than max_pixels"):
        decode_jpeg(encoded(), max_pixels=1000)


@pytest.mark.parametrize("box", [(0, 0, 62, 10), (-1, 0, 5, 5), (0, 80, 5, 5), (0, 0, 0, 5)])
def test_a_box_has_to_lie_in_the_image(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(OptionError, match="in 83 x 61 pixels"):
        decode_jpeg(encoded(), box=box)
