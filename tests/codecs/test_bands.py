"""Bands beside the colours: what is declared to be alpha is that, and all others are left out and counted."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from PIL import Image

from pictures import saved
from presize.codecs.decode import decode
from presize.codecs.exact import decode_exact
from presize.codecs.pillow_decoder import Wanted
from presize.errors import ImageError
from tiffs import CHUNKY, DEFLATE, PLANAR, RAW, gradient, page, tiff

WHITE_IS_ZERO, GREY, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
COLORS = {WHITE_IS_ZERO: 1, GREY: 1, RGB: 3}

LAYOUTS = [(RAW, 1), (DEFLATE, 1), (DEFLATE, 2)]
WAYS = [
    (planar, *layout, tile, order, big)
    for planar, layout, tile, order, big in itertools.product(
        (CHUNKY, PLANAR), LAYOUTS, (None, 16), ("<", ">"), (False, True)
    )
    if order == "<" or not big  # which Pillow does not read
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
def test_only_declared_alpha_is_alpha_and_other_bands_are_left_out(
    photometric: int, bands: int, extra: tuple[int, ...] | None, alpha: int | None, depth: int
) -> None:
    pixels = gradient(37, 45, bands, np.uint8 if depth == 8 else np.uint16)
    top = np.iinfo(pixels.dtype).max
    colors = pixels[:, :, : COLORS[photometric]]
    colors = top - colors if photometric == WHITE_IS_ZERO else colors
    cover = np.full((37, 45), top) if alpha is None else pixels[:, :, alpha]
    for planar, compression, predictor, tile, order, big in WAYS:
        if depth == 16 and photometric == WHITE_IS_ZERO and order == ">":
            continue  # which Pillow does not read
        one = page(
            pixels, photometric, extra, order=order, planar=planar, compression=compression, predictor=predictor,
            tile=tile,
        )  # fmt: skip
        found = decode(tiff(one, order=order, big=big), Wanted("rgba", 8 if depth == 8 else 16))
        assert found.facts.surplus and found.facts.transparent == (alpha is not None)
        assert np.array_equal(found.pixels[:, :, :3], np.broadcast_to(colors, (37, 45, 3)))
        assert np.array_equal(found.pixels[:, :, 3], cover)


@pytest.mark.parametrize("extra", [None, (0,)])
def test_near_infrared_changes_no_colour(extra: tuple[int, ...] | None) -> None:
    pixels = np.broadcast_to(np.array((100, 150, 200, 128), np.uint8), (9, 9, 4))
    found = decode(tiff(page(pixels, RGB, extra)))
    assert np.array_equal(found.pixels, pixels[:, :, :3])
    assert found.facts.surplus and not found.facts.transparent


@pytest.mark.parametrize("planar", [CHUNKY, PLANAR])
@pytest.mark.parametrize("extra", [(2,), (999,)])
def test_declared_alpha_is_kept_and_is_no_surplus(extra: tuple[int, ...], planar: int) -> None:
    for photometric, bands in ((RGB, 4), (GREY, 2)):
        pixels = gradient(20, 30, bands)
        one = page(pixels, photometric, (2,) if bands == 2 else extra, planar=planar, compression=DEFLATE)
        found = decode(tiff(one), "rgba")
        assert np.array_equal(found.pixels[:, :, 3], pixels[:, :, -1])
        assert found.facts.transparent and not found.facts.surplus


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("photometric", "bands"), [(RGB, 3), (CMYK, 4)])
def test_planes_of_16_bits_are_read_as_those_of_a_pixel_together(
    photometric: int, bands: int, order: str, tile: int | None
) -> None:
    pixels = gradient(20, 30, bands, np.uint16)
    planes, together = (
        tiff(page(pixels, photometric, order=order, planar=planar, tile=tile), order=order)
        for planar in (PLANAR, CHUNKY)
    )
    assert np.array_equal(decode(planes).pixels, decode(together).pixels)


def test_premultiplied_alpha_is_divided_out_wherever_it_is() -> None:
    cover = gradient(20, 30, 1)
    shades = (gradient(20, 30, 3).astype(int) * cover // 255).astype(np.uint8)
    alone = decode(tiff(page(np.dstack((shades, cover)), RGB, (1,))), "rgba").pixels
    among = tiff(page(np.dstack((shades, cover[:, :, ::-1], cover)), RGB, (0, 1)))
    assert np.array_equal(decode(among, "rgba").pixels, alone)


@pytest.mark.parametrize(("photometric", "bands", "extra"), [(CMYK, 5, None), (CMYK, 6, (0, 0)), (LAB, 4, None)])
def test_inks_and_lab_are_what_they_are_without_the_surplus(
    photometric: int, bands: int, extra: tuple[int, ...] | None
) -> None:
    pixels = gradient(20, 30, bands)
    colors = pixels[:, :, : 4 if photometric == CMYK else 3]
    found = decode(tiff(page(pixels, photometric, extra)))
    assert np.array_equal(found.pixels, decode(tiff(page(colors, photometric))).pixels)
    assert found.facts.surplus


@pytest.mark.parametrize(("photometric", "expected"), [(RGB, (0, 1, 2)), (GREY, (0,))])
def test_a_jpeg_of_four_bands_gives_its_first(photometric: int, expected: tuple[int, ...]) -> None:
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
        (tiff(page(gradient(9, 9, 4), RGB, t339=(3, 3, 3, 3))), "4 bands, which are only read as unsigned numbers"),
        (tiff(page(gradient(9, 9, 4, np.uint32), RGB)), "4 bands, which are only read as unsigned numbers"),
        (tiff(page(gradient(9, 9, 4), YCBCR)), "and not as YCbCr"),
        (tiff(page(gradient(9, 9, 5), RGB, t259=(7,))), "5 bands in compression 7, which is read with at most 4"),
    ],
)
def test_bands_that_are_not_read_are_rejected_with_a_reason(data: bytes, reason: str) -> None:
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
