"""TIFFs of several directories: which of them is the image."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import damaged

from effort import examples
from pictures import saved
from presize.codecs.decode import decode
from presize.errors import ImageError
from tiffs import Page, gradient, page, tiff

PHOTO = gradient(30, 40, 3)
FULL, REDUCED, PAGE, MASK = {"t254": (0,)}, {"t254": (1,)}, {"t254": (2,)}, {"t254": (4,)}
CFA, LINEAR_RAW = 32803, 34892


def small(height: int = 6, width: int = 8, **more: Any) -> Page:
    return page(np.full((height, width, 3), 9, np.uint8), **more)


LARGER = page(gradient(60, 80, 3))
SENSOR = page(gradient(60, 80, 1, np.uint16), CFA, **FULL)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([small(**REDUCED, inner=[page(PHOTO, **FULL)])], "a preview with the image as its sub-image"),
        ([small(**REDUCED, inner=[small(20, 20, **REDUCED), page(PHOTO)])], "beside another preview"),
        ([small(**REDUCED), page(PHOTO, **FULL)], "a preview, and the image in the next directory"),
        ([small(t255=(2,)), page(PHOTO, t255=(1,))], "as old writers say it"),
        ([small(**REDUCED), small(9, 9), page(PHOTO)], "the largest of those that are not reduced"),
        ([small(inner=[page(PHOTO)])], "a sub-image that is larger"),
        ([page(PHOTO, **FULL, inner=[small(15, 20, **REDUCED), small(7, 10, **REDUCED)])], "a pyramid in sub-images"),
        ([page(PHOTO), small(15, 20, **REDUCED), small(7, 10, **REDUCED)], "a pyramid"),
        ([page(PHOTO), small(15, 20), small(7, 10)], "a pyramid that does not say so"),
        ([page(PHOTO, **PAGE), LARGER], "pages of which the second is larger"),
        ([page(PHOTO), LARGER], "pages that say nothing"),
        ([page(PHOTO, t255=(3,)), LARGER], "pages as old writers say it"),
        ([page(PHOTO, inner=[page(gradient(60, 80, 1), 4, **MASK)])], "with a mask that is larger"),
        ([page(PHOTO, inner=[page(gradient(60, 80, 3), t254=(8,))])], "with a depth map that is larger"),
        ([page(PHOTO, **REDUCED)], "a file that is but a preview"),
        ([page(PHOTO, **REDUCED), small(**REDUCED)], "of which none says that it is whole"),
    ],
)
def test_the_image_is_the_first_page_and_no_preview_of_it(pages: list[Page], reason: str, order: str) -> None:
    assert np.array_equal(decode(tiff(*pages, order=order)).pixels, PHOTO), reason


def test_the_image_of_a_bigtiff_is_found_too() -> None:
    assert np.array_equal(decode(tiff(small(**REDUCED, inner=[page(PHOTO)]), big=True)).pixels, PHOTO)


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param([small(**REDUCED, inner=[SENSOR])], id="DNG, NEF, ARW"),
        pytest.param([small(**REDUCED, inner=[page(PHOTO, **REDUCED), SENSOR])], id="with a large preview"),
        pytest.param([small(**REDUCED, inner=[page(PHOTO), page(gradient(60, 80, 3), LINEAR_RAW)])], id="linear"),
        pytest.param([SENSOR], id="the sensor's values alone, as phones write them"),
        pytest.param([SENSOR, small(**REDUCED)], id="a preview after them, as in PEF"),
        pytest.param([small(), SENSOR], id="a preview that does not say so"),
    ],
)
def test_a_cameras_raw_file_is_rejected_by_name(pages: list[Page]) -> None:
    with pytest.raises(ImageError, match=r"^a camera's raw file, which has to be developed"):
        decode(tiff(*pages))


def row(pixels: bytes) -> bytes:
    """A TIFF of one grey row, which begins at byte 8, before the directory."""
    return tiff(page(np.frombuffer(pixels, np.uint8).reshape(1, -1, 1), 1))


def test_a_cr2_is_rejected_by_its_header() -> None:
    with pytest.raises(ImageError, match="a camera's raw file"):
        decode(row(b"CR\2\0" + bytes(4)))


@pytest.mark.parametrize("pixels", [b"CR\2\0" + bytes(20), b"CRCRCRCR"])
def test_pixels_that_look_like_the_header_of_a_cr2_are_pixels(pixels: bytes) -> None:
    assert decode(row(pixels), "gray").pixels.tobytes() == pixels


def test_a_preview_is_not_taken_where_the_image_cannot_be_read() -> None:
    unknown = page(PHOTO, compression=34713)
    with pytest.raises(ImageError, match=r"a camera's raw file, of which only a preview can be read \(broken TIFF"):
        decode(tiff(small(**REDUCED, inner=[unknown])))


@pytest.mark.parametrize("inner", [True, False], ids=["sub-image", "next directory"])
def test_a_preview_is_not_taken_where_the_image_is_cut_off(inner: bool) -> None:
    pages = [small(**REDUCED, inner=[page(PHOTO)])] if inner else [small(**REDUCED), page(PHOTO)]
    data = bytearray(tiff(*pages))
    outside = struct.pack("<I", len(data) + 100)
    if inner:
        at = data.index(struct.pack("<HHI", 330, 4, 1)) + 8
    else:
        (first,) = struct.unpack_from("<I", data, 4)
        at = first + 2 + 12 * struct.unpack_from("<H", data, first)[0]
    data[at : at + 4] = outside
    with pytest.raises(ImageError, match="only a preview of it is left"):
        decode(bytes(data))


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("first", "image", "expected"),
    [((6,), (), 6), ((), (3,), 3), ((6,), (3,), 3), ((), (), 1), ((9,), (), 1)],
)
def test_the_orientation_of_the_first_directory_holds_where_the_image_has_none(
    first: tuple[int, ...], image: tuple[int, ...], expected: int, big: bool
) -> None:
    data = tiff(small(**REDUCED, t274=first, inner=[page(PHOTO, t274=image)]), big=big)
    plain = saved(PHOTO, "TIFF", tiffinfo={274: expected})
    assert np.array_equal(decode(data).pixels, decode(plain).pixels)


@pytest.mark.parametrize(
    ("pages", "several"),
    [
        ([page(PHOTO), LARGER], True),
        ([page(PHOTO, **PAGE), page(PHOTO, **PAGE)], True),
        ([small(**REDUCED), page(PHOTO), LARGER], True),
        ([page(PHOTO)], False),
        ([page(PHOTO), small(**REDUCED), small(4, 4, **REDUCED)], False),
        ([page(PHOTO), page(gradient(30, 40, 1), 4, **MASK)], False),
        ([small(**REDUCED, inner=[page(PHOTO)])], False),
        ([small(**REDUCED, inner=[page(PHOTO)]), small(**REDUCED)], False),
        ([small(**REDUCED), page(PHOTO)], False),
    ],
)
def test_previews_overviews_and_masks_are_no_pages(pages: list[Page], several: bool) -> None:
    assert decode(tiff(*pages)).facts.several == several


@pytest.mark.parametrize("inner", [True, False])
def test_directories_in_a_loop_come_to_an_end(inner: bool) -> None:
    data = bytearray(tiff(page(PHOTO, inner=[small()]) if inner else page(PHOTO)))
    (first,) = struct.unpack_from("<I", data, 4)
    fields = struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<I", data, first + 2 + 12 * fields, first)
    if inner:
        struct.pack_into("<I", data, data.index(struct.pack("<HHI", 330, 4, 1)) + 8, first)
    assert np.array_equal(decode(bytes(data)).pixels, PHOTO)


WHOLE = [
    tiff(small(**REDUCED, inner=[page(PHOTO, compression=8, predictor=2)]), page(PHOTO)),
    tiff(page(gradient(20, 20, 5), 2, (0, 2), tile=16, planar=2), order=">"),
    tiff(page(gradient(20, 20, 6, np.uint16), 5, (0, 0), compression=8, predictor=2), big=True),
]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")  # about fields that are damaged
@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(WHOLE).flatmap(lambda whole: damaged(whole, begin=max(8, len(whole) - 700))))
def test_a_damaged_tiff_is_an_image_or_a_reason(data: bytes) -> None:
    try:
        pixels = decode(data, max_pixels=100_000).pixels
    except ImageError as error:
        assert str(error).isprintable()
    else:
        assert pixels.dtype == np.uint8 and pixels.shape[2:] == (3,)
