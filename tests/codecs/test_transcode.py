"""One image through the whole of what a build does to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from pictures import opened, oriented, saved, smooth_image
from presize.codecs.decode import decode
from presize.codecs.encode import MAX_JPEG_SIDE, encode
from presize.codecs.jpeg.tiles import cut_jpeg
from presize.codecs.transcode import Transcoded, transcode
from presize.errors import ImageError
from presize.options import ImageOptions, Size
from profiles import GRAY_LINEAR, SWAPPED


def options(*sizes: int, **others: object) -> ImageOptions:
    return ImageOptions(sizes=tuple(Size(size, size) for size in sizes), **others)  # type: ignore[arg-type]


def jpeg(pixels: np.ndarray, subsampling: str = "4:4:4", **save: Any) -> bytes:
    return saved(pixels, "JPEG", quality=95, subsampling=subsampling, **save)


def decoded(result: Transcoded, number: int = 0) -> np.ndarray:
    return np.asarray(opened(result.records[number].value))


def scan_of(data: bytes) -> bytes:
    return data[data.index(b"\xff\xda") :]


def test_each_size_is_stored_as_a_plain_resize_of_the_image() -> None:
    pixels = smooth_image(300, 400)
    result = transcode(jpeg(pixels), options(64, 32, format="png"))
    assert result.source == Size(300, 400)
    assert [record[1:] for record in result.records] == [(64, 85), (32, 42)]
    for number, (_, height, width) in enumerate(result.records):
        expected = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        assert np.abs(decoded(result, number) - expected).mean() < 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_is_stored_is_upright(orientation: int) -> None:
    upright = smooth_image(96, 128)
    turn = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]
    stored = Image.fromarray(upright) if turn is None else Image.fromarray(upright).transpose(Image.Transpose(turn))
    result = transcode(jpeg(np.asarray(stored), exif=oriented(orientation)), options(96, format="png"))
    assert result.source == Size(96, 128)
    assert np.abs(decoded(result).astype(int) - upright).mean() < 3


SMALL = smooth_image(60, 50)


@pytest.mark.parametrize(
    ("data", "asked", "passes", "reason"),
    [
        (jpeg(SMALL), options(64), True, "baseline"),
        (jpeg(SMALL, "4:2:0"), options(64), True, "any subsampling"),
        (jpeg(SMALL, progressive=True), options(64), True, "progressive"),
        (jpeg(SMALL[:, :, 0]), options(64), True, "grey"),
        (jpeg(SMALL, exif=oriented(1)), options(64), True, "upright by its own account"),
        (jpeg(SMALL), options(64, 32), True, "though another size is resized"),
        (jpeg(SMALL, exif=oriented(6)), options(64), False, "it lies on its side"),
        (jpeg(SMALL), options(40), False, "it is too large"),
        (jpeg(SMALL), options(64, color="gray"), False, "it has colours"),
        (jpeg(SMALL), options(64, fit="pad"), False, "it needs bars"),
        (jpeg(SMALL), options(64, upscale=True), False, "it is too small"),
    ],
)
def test_a_plain_jpeg_that_fits_is_not_compressed_again(
    data: bytes, asked: ImageOptions, passes: bool, reason: str
) -> None:
    value, *others = transcode(data, asked).records
    assert (scan_of(data) == scan_of(value.value)) == passes, reason
    assert [record[1:] for record in others] == [(38, 32)] * (len(asked.sizes) - 1)
    if passes:
        assert np.array_equal(simplejpeg.decode_jpeg(value.value), simplejpeg.decode_jpeg(data)), reason
        assert cut_jpeg(value.value, 0, 0, 8, 8) is None, "it has no tiles"


def test_a_damaged_jpeg_does_not_pass_through() -> None:
    data = jpeg(SMALL)
    with pytest.raises(ImageError):
        transcode(data[: len(data) // 2], options(64))


@pytest.mark.parametrize("fits", [True, False])
def test_metadata_is_left_out(fits: bool) -> None:
    data = jpeg(SMALL, exif=oriented(1), comment=b"secret", xmp=b"<secret/>")
    value = transcode(data, options(64 if fits else 32)).records[0].value
    image = opened(value)
    assert not image.getexif()
    assert b"secret" not in value


@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("fits", [True, False])
def test_metadata_is_kept_when_asked_for(fits: bool, format: str) -> None:
    data = jpeg(SMALL, exif=oriented(6, "a camera"))
    value = transcode(data, options(64 if fits else 32, keep_metadata=True, format=format)).records[0].value
    kept = opened(value).getexif()
    assert kept[0x010F] == "a camera"
    assert kept[0x0112] == 1, "the pixels are upright now"


@pytest.mark.parametrize(
    ("color", "source_channels", "stored_shape"),
    [
        ("rgb", 3, (48, 64, 3)),
        ("rgb", 1, (48, 64, 3)),
        ("gray", 3, (48, 64)),
        ("gray", 1, (48, 64)),
        ("keep", 3, (48, 64, 3)),
        ("keep", 1, (48, 64)),
    ],
)
def test_the_colours_asked_for_are_stored(color: str, source_channels: int, stored_shape: tuple[int, ...]) -> None:
    pixels = smooth_image(96, 128) if source_channels == 3 else smooth_image(96, 128)[:, :, 0]
    assert decoded(transcode(jpeg(pixels), options(48, color=color))).shape == stored_shape


@pytest.mark.parametrize(("profile", "channels"), [(SWAPPED, 3), (GRAY_LINEAR, 1)], ids=["colours", "grey"])
@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
def test_colours_are_converted_to_srgb_after_the_resize(profile: bytes, channels: int, color: str) -> None:
    pixels = smooth_image(96, 128) if channels == 3 else smooth_image(96, 128)[:, :, 0]
    data = jpeg(pixels, icc_profile=profile)
    got = decoded(transcode(data, options(48, color=color, format="png"))).astype(int)
    full = Image.fromarray(decode(data, color).pixels)  # type: ignore[arg-type]
    assert np.abs(got - np.asarray(full.resize((64, 48), Image.Resampling.BICUBIC))).mean() < 1.5


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "raw"])
def test_each_format_is_what_it_says_in_the_colors_of_the_source(format: str) -> None:
    data = jpeg(np.broadcast_to(np.array((200, 0, 30), np.uint8), (300, 300, 3)))
    asked = options(64, format=format)
    ((value, height, width),) = transcode(data, asked).records
    assert transcode(data, asked) == transcode(data, asked)
    if format == "raw":
        pixels = np.frombuffer(value, np.uint8).reshape(height, width, 3)
        assert np.array_equal(pixels, decoded(transcode(data, options(64, format="png"))))
    else:
        assert opened(value).format == format.upper()
        pixels = np.asarray(opened(value))
    if format != "jpeg":
        assert transcode(data, replace(asked, tiles=False)) == transcode(data, asked)
    assert np.abs(pixels.reshape(-1, 3).mean(axis=0) - (200, 0, 30)).max() < 4


def test_the_subsampling_asked_for_is_stored() -> None:
    data = jpeg(smooth_image(96, 128))
    stored = {sub: transcode(data, options(48, subsampling=sub)).records[0].value for sub in ("420", "422", "444")}
    assert {sub: simplejpeg.decode_jpeg_header(value)[3] for sub, value in stored.items()} == {s: s for s in stored}


@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("subsampling", ["420", "422", "444"])
def test_a_jpeg_is_stored_in_tiles_unless_told_otherwise(subsampling: str, color: str) -> None:
    data = jpeg(smooth_image(300, 400))
    asked = options(128, subsampling=subsampling, color=color)
    value = transcode(data, asked).records[0].value
    part = cut_jpeg(value, 40, 50, 30, 40)
    assert part is not None
    assert len(part.data) < len(value)
    pixels = np.asarray(opened(part.data))[part.top : part.top + 30, part.left : part.left + 40]
    assert np.array_equal(pixels, np.asarray(opened(value))[40:70, 50:90])
    plain = transcode(data, replace(asked, tiles=False)).records[0].value
    assert cut_jpeg(plain, 40, 50, 30, 40) is None
    assert b"\xff\xdd" not in plain, "no restart interval"
    # The encoders round differently, and quantise by the same tables.
    tables = [opened(stored).quantization for stored in (value, plain)]  # type: ignore[attr-defined]
    assert tables[0] == tables[1]
    difference = np.abs(decoded(transcode(data, asked)).astype(int) - np.asarray(opened(plain)))
    assert difference.mean() < 1


def test_tiles_and_metadata_go_together() -> None:
    data = jpeg(smooth_image(200, 200), exif=oriented(6), comment=b"a comment")
    value = transcode(data, options(100, keep_metadata=True)).records[0].value
    assert opened(value).info["comment"] == b"a comment"
    part = cut_jpeg(value, 40, 50, 30, 40)
    assert part is not None
    assert len(part.data) < len(value)


@pytest.mark.parametrize("tiles", [True, False])
def test_an_image_too_long_for_a_jpeg_is_refused(tiles: bool) -> None:
    longest = np.zeros((MAX_JPEG_SIDE, 2, 3), np.uint8)
    assert opened(encode(longest, options(64, tiles=tiles))).size == (2, MAX_JPEG_SIDE)
    with pytest.raises(ImageError, match=r"2x65501 pixels are more than JPEG stores: 65500 a side"):
        encode(np.zeros((MAX_JPEG_SIDE + 1, 2, 3), np.uint8), options(64, tiles=tiles))


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    pixels = smooth_image(1600, 1200)
    data = jpeg(pixels, "4:2:0")
    got = decoded(transcode(data, options(64, format="png"))).astype(int)
    full = np.asarray(opened(data).resize((64, 85), Image.Resampling.BICUBIC))
    assert np.abs(got - full).max() <= 3


def test_nearest_takes_pixels_of_the_source_and_no_means_of_them() -> None:
    data = jpeg(np.random.default_rng(1).integers(0, 256, (640, 640, 3), np.uint8))
    source = simplejpeg.decode_jpeg(data)
    result = transcode(data, options(40, filter="nearest", format="png"))
    assert np.array_equal(decoded(result), source[8::16, 8::16])


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("subsampling", ["420", "444"])
def test_bgrx_is_stored_to_the_same_bytes_as_rgb(subsampling: str, tiles: bool) -> None:
    pixels = smooth_image(120, 161)
    bgrx = np.dstack((pixels[:, :, ::-1], np.full((120, 161), 255, np.uint8)))
    chosen = options(64, subsampling=subsampling, tiles=tiles)
    assert encode(bgrx, chosen) == encode(pixels, chosen)


@pytest.mark.parametrize(("size", "shape"), [("256", "17066x256"), ("keep", "20000x300")])
def test_an_image_that_is_too_long_for_webp_is_rejected_alone(size: str, shape: str) -> None:
    data = saved(np.zeros((300, 20_000), np.uint8), "PPM")
    with pytest.raises(ImageError, match=rf"{shape} pixels are more than WebP stores"):
        transcode(data, ImageOptions(sizes=(Size.parse(size),), format="webp"))


def test_a_narrow_image_is_not_enlarged_beyond_what_may_be_decoded() -> None:
    data = saved(np.zeros((1, 6000, 3), np.uint8), "PNG")
    with pytest.raises(ImageError, match=r"1536000x256 pixels, if it were enlarged, are more than "):
        transcode(data, options(256, upscale=True))
    assert transcode(data, options(256)).records[0].height == 1
