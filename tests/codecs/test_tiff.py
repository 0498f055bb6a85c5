"""TIFFs: the directory of the image, and the bands of colours and alpha."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from jpegs import damaged
from pictures import saved
from presize.codecs.decode import decode
from presize.codecs.exact import decode_any, decode_exact
from presize.codecs.pillow_decoder import Wanted
from presize.errors import ImageError
from tiffs import CHUNKY, DEFLATE, PLANAR, RAW, Page, gradient, page, tiff

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
        ([small(**REDUCED, inner=[small(20, 20, **REDUCED), page(PHOTO)])], "with another preview"),
        ([small(**REDUCED), page(PHOTO, **FULL)], "a preview, and the image in the next directory"),
        ([small(t255=(2,)), page(PHOTO, t255=(1,))], "as old writers mark it"),
        ([small(**REDUCED), small(9, 9), page(PHOTO)], "the largest one not marked as reduced"),
        ([small(inner=[page(PHOTO)])], "a larger sub-image"),
        ([page(PHOTO, **FULL, inner=[small(15, 20, **REDUCED), small(7, 10, **REDUCED)])], "a pyramid in sub-images"),
        ([page(PHOTO), small(15, 20, **REDUCED), small(7, 10, **REDUCED)], "a pyramid"),
        ([page(PHOTO), small(15, 20), small(7, 10)], "an unmarked pyramid"),
        ([page(PHOTO, **PAGE), LARGER], "pages with a larger second one"),
        ([page(PHOTO), LARGER], "unmarked pages"),
        ([page(PHOTO, t255=(3,)), LARGER], "pages as old writers mark them"),
        ([page(PHOTO, inner=[page(gradient(60, 80, 1), 4, **MASK)])], "with a larger mask"),
        ([page(PHOTO, inner=[page(gradient(60, 80, 3), t254=(8,))])], "with a larger depth map"),
        ([page(PHOTO, **REDUCED)], "a file with only a preview"),
        ([page(PHOTO, **REDUCED), small(**REDUCED)], "none is marked as complete"),
    ],
)
def test_the_image_is_the_first_page_and_not_its_preview(pages: list[Page], reason: str, order: str) -> None:
    for big in (False, True) if order == "<" else (False,):  # Pillow reads no other BigTIFF
        assert np.array_equal(decode(tiff(*pages, order=order, big=big)).pixels, PHOTO), reason


RAW_FILES = {
    "DNG, NEF, ARW": [small(**REDUCED, inner=[SENSOR])],
    "with a large preview": [small(**REDUCED, inner=[page(PHOTO, **REDUCED), SENSOR])],
    "linear": [small(**REDUCED, inner=[page(PHOTO), page(gradient(60, 80, 3), LINEAR_RAW)])],
    "the sensor's values alone, as phones write them": [SENSOR],
    "a preview after them, as in PEF": [SENSOR, small(**REDUCED)],
    "a preview that does not say so": [small(), SENSOR],
}


@pytest.mark.parametrize("pages", RAW_FILES.values(), ids=RAW_FILES)
def test_a_cameras_raw_file_is_rejected_by_name(pages: list[Page]) -> None:
    with pytest.raises(ImageError, match=r"^a camera raw file; develop it"):
        decode(tiff(*pages))


def row(pixels: bytes) -> bytes:
    """Return a TIFF of one grey row, which starts at byte 8, before the directory."""
    return tiff(page(np.frombuffer(pixels, np.uint8).reshape(1, -1, 1), 1))


def test_a_cr2_is_rejected_by_its_header() -> None:
    with pytest.raises(ImageError, match="a camera raw file"):
        decode(row(b"CR\2\0" + bytes(4)))


@pytest.mark.parametrize("pixels", [b"CR\2\0" + bytes(20), b"CRCRCRCR"])
def test_pixels_that_look_like_the_header_of_a_cr2_are_pixels(pixels: bytes) -> None:
    assert decode(row(pixels), "gray").pixels.tobytes() == pixels


def test_a_preview_does_not_replace_an_unreadable_image() -> None:
    unknown = page(PHOTO, compression=34713)
    with pytest.raises(ImageError, match=r"a camera raw file; only its preview can be read \(broken TIFF"):
        decode(tiff(small(**REDUCED, inner=[unknown])))


@pytest.mark.parametrize("inner", [True, False], ids=["sub-image", "next directory"])
def test_a_preview_does_not_replace_a_truncated_image(inner: bool) -> None:
    pages = [small(**REDUCED, inner=[page(PHOTO)])] if inner else [small(**REDUCED), page(PHOTO)]
    data = bytearray(tiff(*pages))
    outside = struct.pack("<I", len(data) + 100)
    if inner:
        at = data.index(struct.pack("<HHI", 330, 4, 1)) + 8
    else:
        (first,) = struct.unpack_from("<I", data, 4)
        at = first + 2 + 12 * struct.unpack_from("<H", data, first)[0]
    data[at : at + 4] = outside
    with pytest.raises(ImageError, match="only its preview is intact"):
        decode(bytes(data))


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("first", "image", "expected"),
    [((6,), (), 6), ((), (3,), 3), ((6,), (3,), 3), ((), (), 1), ((9,), (), 1)],
)
def test_the_orientation_of_the_first_directory_applies_if_the_image_has_none(
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
def test_previews_overviews_and_masks_are_not_pages(pages: list[Page], several: bool) -> None:
    assert decode(tiff(*pages)).facts.several == several


@pytest.mark.parametrize("inner", [True, False])
def test_loops_of_directories_terminate(inner: bool) -> None:
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


@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")  # about damaged fields
@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(WHOLE).flatmap(lambda whole: damaged(whole, begin=max(8, len(whole) - 700))))
def test_a_damaged_tiff_is_an_image_or_a_reason(data: bytes) -> None:
    try:
        pixels = decode(data, max_pixels=100_000).pixels
    except ImageError as error:
        assert str(error).isprintable()
    else:
        assert pixels.dtype == np.uint8 and pixels.shape[2:] == (3,)


# Bands in addition to colours


WHITE_IS_ZERO, GREY, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
COLORS = {WHITE_IS_ZERO: 1, GREY: 1, RGB: 3}

LAYOUTS = [(RAW, 1), (DEFLATE, 1), (DEFLATE, 2)]
WAYS = [
    (planar, *layout, tile, order, big)
    for planar, layout, tile, order, big in itertools.product(
        (CHUNKY, PLANAR), LAYOUTS, (None, 16), ("<", ">"), (False, True)
    )
    if order == "<" or not big  # Pillow does not read the others
]


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize(
    ("photometric", "bands", "extra", "alpha"),
    [
        (RGB, 4, None, None),
        (RGB, 4, (0,), None),
        (RGB, 5, None, None),
        (RGB, 5, (0, 2), 4),
        (RGB, 5, (2, 0), 3),
        (RGB, 8, (0, 0, 0, 2, 0), 6),
        (RGB, 13, (0,) * 10, None),
        (GREY, 2, None, None),
        (GREY, 2, (0,), None),
        (GREY, 4, (0, 0, 0), None),
        (WHITE_IS_ZERO, 3, None, None),
    ],
)
def test_only_declared_alpha_is_alpha_and_other_bands_are_skipped(
    photometric: int, bands: int, extra: tuple[int, ...] | None, alpha: int | None, depth: int
) -> None:
    pixels = gradient(37, 45, bands, np.uint8 if depth == 8 else np.uint16)
    top = np.iinfo(pixels.dtype).max
    colors = pixels[:, :, : COLORS[photometric]]
    colors = top - colors if photometric == WHITE_IS_ZERO else colors
    cover = np.full((37, 45), top) if alpha is None else pixels[:, :, alpha]
    for planar, compression, predictor, tile, order, big in WAYS:
        if depth == 16 and photometric == WHITE_IS_ZERO and order == ">":
            continue  # Pillow does not read it
        one = page(
            pixels, photometric, extra, order=order, planar=planar, compression=compression, predictor=predictor,
            tile=tile,
        )  # fmt: skip
        found = decode(tiff(one, order=order, big=big), Wanted("rgba", 8 if depth == 8 else 16))
        assert found.facts.surplus and found.facts.transparent == (alpha is not None)
        assert np.array_equal(found.pixels[:, :, :3], np.broadcast_to(colors, (37, 45, 3)))
        assert np.array_equal(found.pixels[:, :, 3], cover)


@pytest.mark.parametrize("planar", [CHUNKY, PLANAR])
@pytest.mark.parametrize("extra", [(2,), (999,)])
def test_declared_alpha_is_kept_and_not_surplus(extra: tuple[int, ...], planar: int) -> None:
    for photometric, bands in ((RGB, 4), (GREY, 2)):
        pixels = gradient(20, 30, bands)
        one = page(pixels, photometric, (2,) if bands == 2 else extra, planar=planar, compression=DEFLATE)
        found = decode(tiff(one), "rgba")
        assert np.array_equal(found.pixels[:, :, 3], pixels[:, :, -1])
        assert found.facts.transparent and not found.facts.surplus


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("photometric", "bands"), [(RGB, 3), (CMYK, 4)])
def test_planes_of_16_bits_are_read_like_interleaved_pixels(
    photometric: int, bands: int, order: str, tile: int | None
) -> None:
    pixels = gradient(20, 30, bands, np.uint16)
    planes, together = (
        tiff(page(pixels, photometric, order=order, planar=planar, tile=tile), order=order)
        for planar in (PLANAR, CHUNKY)
    )
    assert np.array_equal(decode(planes).pixels, decode(together).pixels)


def test_premultiplied_alpha_is_divided_out_everywhere() -> None:
    cover = gradient(20, 30, 1)
    shades = (gradient(20, 30, 3).astype(int) * cover // 255).astype(np.uint8)
    alone = decode(tiff(page(np.dstack((shades, cover)), RGB, (1,))), "rgba").pixels
    among = tiff(page(np.dstack((shades, cover[:, :, ::-1], cover)), RGB, (0, 1)))
    assert np.array_equal(decode(among, "rgba").pixels, alone)


@pytest.mark.parametrize(("photometric", "bands", "extra"), [(CMYK, 5, None), (CMYK, 6, (0, 0)), (LAB, 4, None)])
def test_inks_and_lab_are_read_without_the_surplus(photometric: int, bands: int, extra: tuple[int, ...] | None) -> None:
    pixels = gradient(20, 30, bands)
    colors = pixels[:, :, : 4 if photometric == CMYK else 3]
    found = decode(tiff(page(pixels, photometric, extra)))
    assert np.array_equal(found.pixels, decode(tiff(page(colors, photometric))).pixels)
    assert found.facts.surplus


@pytest.mark.parametrize(("photometric", "expected"), [(RGB, (0, 1, 2)), (GREY, (0,))])
def test_a_jpeg_of_four_bands_yields_its_first_ones(photometric: int, expected: tuple[int, ...]) -> None:
    y, x = np.mgrid[:64, :80]
    pixels = np.stack((x * 2, y * 3, x + y, 255 - x), axis=-1).astype(np.uint8)
    data = bytearray(saved(Image.fromarray(pixels, "CMYK"), "TIFF", compression="jpeg", quality=95))
    at = data.rindex(struct.pack("<HHI", 262, 3, 1))
    data[at + 8 : at + 10] = struct.pack("<H", photometric)
    found = decode(bytes(data), "keep")
    assert np.abs(np.atleast_3d(found.pixels).astype(int) - pixels[:, :, expected]).max() <= 3
    assert found.facts.surplus


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tiff(page(gradient(9, 9, 5), CMYK, (2,))), "its alpha is not supported"),
        (tiff(page(gradient(9, 9, 2, np.uint16), GREY, (2,))), "its alpha is not supported"),
        (tiff(page(gradient(9, 9, 4), RGB, t339=(3, 3, 3, 3))), "4 bands are only supported as unsigned numbers"),
        (tiff(page(gradient(9, 9, 4, np.uint32), RGB)), "4 bands are only supported as unsigned numbers"),
        (tiff(page(gradient(9, 9, 4), YCBCR)), "not as YCbCr"),
        (tiff(page(gradient(9, 9, 5), RGB, t259=(7,))), "5 bands in compression 7; expected at most 4"),
    ],
)
def test_unreadable_bands_are_rejected_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        decode(data)


def test_many_bands_count_as_more_pixels() -> None:
    data = tiff(page(gradient(10, 10, 13), GREY))
    assert decode(data, max_pixels=325).pixels.shape == (10, 10, 3)
    with pytest.raises(ImageError, match=r"10 x 10 pixels of 13 bands, more than max_pixels allows \(324\)"):
        decode(data, max_pixels=324)


def test_a_mask_keeps_its_numbers_without_the_surplus() -> None:
    pixels = gradient(20, 30, 2, np.uint16)
    values, facts = decode_exact(tiff(page(pixels, GREY)), 1000)
    assert np.array_equal(values, pixels[:, :, 0]) and facts.surplus
    indices = gradient(20, 30, 2)
    colored = page(indices, PALETTE, (0,), t320=tuple(range(768)))
    values, facts = decode_exact(tiff(colored), 1000)
    assert np.array_equal(values, indices[:, :, 0]) and facts.surplus and facts.colors == "palette"


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_a_jpeg_2000_declares_alpha_in_a_box(mode: str) -> None:
    pixels = gradient(20, 30, 4)
    image = Image.fromarray(pixels, "RGBA").convert(mode)
    boxed = saved(image, "JPEG2000")
    assert decode(boxed).facts.transparent
    for undeclared in (boxed.replace(b"cdef", b"free"), saved(image, "JPEG2000", no_jp2=True)):
        found = decode(undeclared)
        assert np.array_equal(found.pixels, np.asarray(image.convert("RGB")))
        assert found.facts.surplus and not found.facts.transparent


def test_a_tga_declares_its_bits_of_alpha() -> None:
    pixels = gradient(20, 30, 4)
    data = bytearray(saved(Image.fromarray(pixels, "RGBA"), "TGA"))
    assert decode(bytes(data)).facts.transparent
    data[17] &= 0xF0
    found = decode(bytes(data))
    assert np.array_equal(found.pixels, pixels[:, :, :3])
    assert found.facts.surplus and not found.facts.transparent


@pytest.mark.parametrize("compression", [RAW, DEFLATE])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.float32])
def test_numbers_are_read_in_either_byte_order(dtype: type[np.number[Any]], compression: int) -> None:
    numbers = (np.arange(-60, 60).reshape(12, 10) * 100).astype(dtype)
    unsigned = numbers.view(f"u{numbers.itemsize}")[:, :, np.newaxis]
    kind = (3,) if dtype == np.float32 else (2,)
    for order in "<>":
        for tile in (None, 16):
            data = tiff(page(unsigned, 1, order=order, compression=compression, tile=tile, t339=kind), order=order)
            assert np.array_equal(decode_any(data, 10**6)[0], numbers)


def test_unsigned_numbers_that_pillow_reads_as_negative_are_refused() -> None:
    data = tiff(page(np.array([[[5]], [[2**32 - 1]]], np.uint32), 1))
    with pytest.raises(ImageError, match="values up to 4294967295; a 32-bit TIFF may have up to 2147483647; save it"):
        decode_any(data, 10**6)


def test_an_image_of_signed_numbers_has_no_range() -> None:
    for bits in (8, 16):
        data = tiff(page(gradient(6, 8, 1, np.dtype(f"u{bits // 8}").type), 1, t339=(2,)))
        with pytest.raises(ImageError, match="signed or 32-bit pixel values are not supported"):
            decode(data)


@pytest.mark.parametrize("compression", [RAW, DEFLATE])
@pytest.mark.parametrize("bands", [1, 2])
@pytest.mark.parametrize("order", ["<", ">"])
def test_grey_of_16_bits_may_begin_with_white(order: str, bands: int, compression: int) -> None:
    pixels = gradient(30, 40, bands, np.uint16)
    extra = (0,) * (bands - 1)
    data = tiff(page(pixels, 0, extra, order=order, compression=compression), order=order)
    assert np.array_equal(decode(data, Wanted("gray", 16)).pixels, 65535 - pixels[:, :, 0])
    assert np.array_equal(decode_exact(data, 10**6)[0], pixels[:, :, 0])


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_palette_may_have_values_of_8_bits(order: str) -> None:
    indices, colors = gradient(30, 40, 1), np.random.default_rng(0).integers(0, 256, (3, 256))
    found = [
        decode(tiff(page(indices, 3, order=order, t320=tuple((colors * scale).ravel())), order=order)).pixels
        for scale in (1, 257)
    ]
    assert np.array_equal(found[0], colors.T[indices[:, :, 0]]) and np.array_equal(found[0], found[1])
