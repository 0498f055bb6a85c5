"""One image through all steps of a build."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any, get_args

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from effort import examples
from jpegs import ORDINARY, compiled, damaged, without_compiled_code
from jpegs import encoded as encoded_jpeg
from pictures import noisy_image, opened, oriented, saved, smooth_image, with_chunk
from presize.codecs import sixteen
from presize.codecs.decode import decode
from presize.codecs.encode import MAX_JPEG_SIDE, encode
from presize.codecs.jpeg.tiles import cut_jpeg
from presize.codecs.pillow_decoder import Wanted
from presize.codecs.source_facts import unpack_facts
from presize.codecs.stored_value import decode_value
from presize.codecs.transcode import Transcoded, transcode
from presize.datasets.reading.regions import View, read_region, uncut_region
from presize.errors import ImageError
from presize.options import KEEP, Color, Filter, Fit, ImageOptions, Size
from profiles import GRAY_LINEAR, SRGB, SWAPPED

SMALL = smooth_image(60, 50)


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


@settings(max_examples=examples(100), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    sizes=st.lists(st.builds(Size, st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=3, unique=True),
    sampling=st.sampled_from(ORDINARY),
    interval=st.integers(0, 9),
    others=st.fixed_dictionaries(
        {
            "fit": st.sampled_from(get_args(Fit)),
            "filter": st.sampled_from(get_args(Filter)),
            "color": st.sampled_from(get_args(Color)),
            "upscale": st.booleans(),
        }
    ),
)
def test_an_image_resized_during_decoding_has_the_pixels_of_a_whole_one(
    shape: tuple[int, int], sizes: list[Size], sampling: str, interval: int, others: dict[str, Any]
) -> None:
    data = encoded_jpeg(noisy_image(*shape, sum(shape)), sampling, 90, interval)
    asked = ImageOptions(sizes=tuple(sizes), format="raw", **others)
    found = transcode(data, asked)
    with pytest.MonkeyPatch.context() as patch:
        without_compiled_code(patch)
        assert transcode(data, asked) == found


@compiled
def test_an_image_resized_during_decoding_is_never_whole_in_memory() -> None:
    data = encoded_jpeg(np.zeros((2000, 2000, 3), np.uint8))
    asked = ImageOptions(sizes=(Size(50, 1000), Size(40, 90)), fit="stretch", format="raw")
    tracemalloc.start()
    transcode(data, asked)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000, "all of its pixels take 16 MB"


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_stored_images_are_upright(orientation: int) -> None:
    upright = smooth_image(96, 128)
    lying = np.rot90(upright, {1: 0, 3: 2, 6: 1, 8: 3}[orientation])
    result = transcode(jpeg(lying, exif=oriented(orientation)), options(96, format="png"))
    assert result.source == Size(96, 128)
    assert np.abs(decoded(result).astype(int) - upright).mean() < 3


@pytest.mark.parametrize(
    ("data", "asked", "passes", "reason"),
    [
        (jpeg(SMALL), options(64), True, "baseline"),
        (jpeg(SMALL, "4:2:0"), options(64), True, "any subsampling"),
        (jpeg(SMALL, progressive=True), options(64), True, "progressive"),
        (jpeg(SMALL[:, :, 0]), options(64), True, "grey"),
        (jpeg(SMALL, exif=oriented(1)), options(64), True, "marked as upright"),
        (jpeg(SMALL), options(64, 32), True, "even if another size is resized"),
        (jpeg(SMALL, exif=oriented(6)), options(64), False, "it is rotated"),
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


@pytest.mark.parametrize("profile", [None, SWAPPED, GRAY_LINEAR], ids=["sRGB", "swapped", "grey"])
@pytest.mark.parametrize("pixels", [smooth_image(96, 128), smooth_image(96, 128)[:, :, 0]], ids=["colours", "grey"])
@pytest.mark.parametrize("color", ["rgb", "gray", "keep"])
def test_the_requested_colours_are_stored_and_converted_to_srgb_after_the_resize(
    pixels: np.ndarray, profile: bytes | None, color: Color
) -> None:
    data = jpeg(pixels, icc_profile=profile)
    got = decoded(transcode(data, options(48, color=color, format="png")))
    full = Image.fromarray(decode(data, color).pixels)
    expected = np.asarray(full.resize((64, 48), Image.Resampling.BICUBIC))
    assert got.shape == expected.shape
    assert np.abs(got.astype(int) - expected).mean() < 1.5


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "raw"])
def test_each_format_is_written_in_the_colors_of_the_source(format: str) -> None:
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


@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("subsampling", ["420", "422", "444"])
def test_a_jpeg_is_stored_in_tiles_by_default(subsampling: str, color: str) -> None:
    data = jpeg(smooth_image(300, 400))
    asked = options(128, subsampling=subsampling, color=color)
    value = transcode(data, asked).records[0].value
    assert simplejpeg.decode_jpeg_header(value)[3] == ("Gray" if color == "gray" else subsampling)
    part = cut_jpeg(value, 40, 50, 30, 40)
    assert part is not None and len(part.data) < len(value)
    pixels = np.asarray(opened(part.data))[part.top : part.top + 30, part.left : part.left + 40]
    assert np.array_equal(pixels, np.asarray(opened(value))[40:70, 50:90])
    plain = transcode(data, replace(asked, tiles=False)).records[0].value
    assert cut_jpeg(plain, 40, 50, 30, 40) is None
    assert b"\xff\xdd" not in plain, "no restart interval"
    # The encoders round differently, but quantise with the same tables.
    tables = [opened(stored).quantization for stored in (value, plain)]  # type: ignore[attr-defined]
    assert tables[0] == tables[1]
    difference = np.abs(decoded(transcode(data, asked)).astype(int) - np.asarray(opened(plain)))
    assert difference.mean() < 1


def test_tiles_and_metadata_can_be_combined() -> None:
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
    with pytest.raises(ImageError, match=r"2x65501 pixels exceed the limit of JPEG: 65500 per side"):
        encode(np.zeros((MAX_JPEG_SIDE + 1, 2, 3), np.uint8), options(64, tiles=tiles))


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    pixels = smooth_image(1600, 1200)
    data = jpeg(pixels, "4:2:0")
    got = decoded(transcode(data, options(64, format="png"))).astype(int)
    full = np.asarray(opened(data).resize((64, 85), Image.Resampling.BICUBIC))
    assert np.abs(got - full).max() <= 3


def test_nearest_takes_pixels_of_the_source_without_averaging() -> None:
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


LONG = saved(np.zeros((300, 20_000), np.uint8), "PPM")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (options(256, format="webp"), "17066x256 pixels exceed the limit of WebP"),
        (ImageOptions(sizes=(KEEP,), format="webp"), "20000x300 pixels exceed the limit of WebP"),
        (options(5000, upscale=True), "333333x5000 pixels after enlarging, more than max_pixels"),
    ],
)
def test_an_image_that_is_too_long_is_rejected(asked: ImageOptions, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        transcode(LONG, asked)


# --size keep: images stored unchanged, and images to decode


FORMATS = ("jpeg", "png", "webp")
each_format = pytest.mark.parametrize("format", FORMATS)


def keep(**others: Any) -> ImageOptions:
    return ImageOptions(sizes=(KEEP,), **others)


def encoded(format: str, pixels: np.ndarray = SMALL, **save: Any) -> bytes:
    return saved(pixels, format, **save)


def fact(result: Transcoded, name: str) -> int:
    return int(unpack_facts(np.array([result.facts]), name)[0])


TRANSPARENT = np.dstack((SMALL, np.zeros((60, 50), np.uint8)))
TEXT = PngImagePlugin.PngInfo()
TEXT.add_text("Title", "me")
STORED_AS_THEY_ARE = [
    (encoded("jpeg"), keep(), "baseline JPEG"),
    (encoded("jpeg", progressive=True), keep(), "progressive JPEG"),
    (encoded("jpeg", SMALL[:, :, 0]), keep(), "grey is read as RGB"),
    (encoded("jpeg", SMALL[:, :, 0]), keep(color="gray"), "grey JPEG"),
    (encoded("jpeg", exif=oriented(1), icc_profile=SRGB, comment=b"me"), keep(), "metadata aside"),
    (encoded("png"), keep(format="png"), "PNG"),
    (encoded("png", SMALL[:, :, 0]), keep(format="png", color="gray"), "grey PNG"),
    (encoded("png", SMALL[:, :, 0]), keep(format="png"), "grey PNG is read as RGB"),
    (encoded("png", SMALL[:, :, 0]), keep(format="png", color="keep"), "grey PNG, kept grey"),
    (encoded("png", exif=oriented(1), icc_profile=SRGB, pnginfo=TEXT), keep(format="png"), "metadata aside"),
    (encoded("webp"), keep(format="webp"), "lossy WebP"),
    (encoded("webp", lossless=True), keep(format="webp"), "lossless WebP"),
    (encoded("webp", exif=oriented(1), icc_profile=SRGB, xmp=b"<x/>"), keep(format="webp"), "metadata aside"),
]
DECODED = [
    (encoded("png"), keep(), "another format"),
    (encoded("jpeg", exif=oriented(6)), keep(), "it lies on its side"),
    (encoded("jpeg"), keep(color="gray"), "it has colours"),
    (encoded("jpeg", icc_profile=SWAPPED), keep(), "its profile changes its colours"),
    (encoded("png", icc_profile=SWAPPED), keep(format="png"), "its profile changes its colours"),
    (encoded("png", exif=oriented(3)), keep(format="png"), "it stands on its head"),
    (encoded("png", TRANSPARENT), keep(format="png"), "transparency is composited on white"),
    (encoded("png"), keep(format="png", color="gray"), "it has colours"),
    (encoded("png", SMALL[:, :, 0].astype(np.uint16) * 257), keep(format="png"), "16 bits"),
    (encoded("png", SMALL[:, :, 0] > 128), keep(format="png"), "1 bit"),
    (encoded("png", transparency=(1, 2, 3)), keep(format="png"), "a transparent colour"),
    (encoded("webp", TRANSPARENT), keep(format="webp"), "transparency is composited on white"),
    (encoded("webp", TRANSPARENT, lossless=True), keep(format="webp"), "lossless, with alpha"),
    (encoded("webp", exif=oriented(8)), keep(format="webp"), "it lies on its side"),
    (encoded("webp", icc_profile=SWAPPED), keep(format="webp"), "its profile changes its colours"),
    (encoded("png"), keep(format="raw"), "raw pixels"),
]
SOURCES = [(*row, True) for row in STORED_AS_THEY_ARE] + [(*row, False) for row in DECODED]


@pytest.mark.parametrize(("data", "options", "reason", "is_kept"), SOURCES, ids=[row[2] for row in SOURCES])
def test_a_file_of_the_target_format_is_stored_unchanged_and_others_are_encoded_once(
    data: bytes, options: ImageOptions, reason: str, is_kept: bool
) -> None:
    result = transcode(data, options)
    ((value, height, width),) = result.records
    source = decode(data, options.color).pixels
    assert fact(result, "kept") == is_kept, reason
    assert (height, width) == result.source == source.shape[:2]
    stored = decode_value(memoryview(value), options.format, options.color, (height, width))
    if is_kept:
        assert len(value) <= len(data)
        assert np.array_equal(stored, source)
    else:
        assert np.abs(stored.astype(int) - source).mean() < 4


@pytest.mark.parametrize("size", [KEEP, Size(64, 64), Size(32, 32)], ids=["keep", "fits", "resized"])
@pytest.mark.parametrize(
    ("source", "format", "depth"),
    [("png", "png", 8), ("webp", "webp", 8), ("jpeg", "png", 16)] + [("jpeg", format, 8) for format in FORMATS],
)
def test_metadata_is_removed_unless_requested(source: str, format: Any, depth: Any, size: Size) -> None:
    turned = 6 if size == Size(32, 32) else 1
    data = saved(SMALL, source, exif=oriented(turned, "a camera"), icc_profile=SRGB, xmp=b"<secret/>")
    asked = ImageOptions(sizes=(size,), format=format, depth=depth)
    plain = transcode(data, asked).records[0].value
    assert b"secret" not in plain and not opened(plain).getexif() and "icc_profile" not in opened(plain).info
    kept = opened(transcode(data, replace(asked, keep_metadata=True)).records[0].value)
    kept.load()
    assert kept.getexif()[0x010F] == "a camera"
    assert kept.getexif()[0x0112] == 1, "the pixels are upright now"
    assert kept.info.get("xmp") == (None if source == "png" else b"<secret/>")


def test_an_animation_is_stored_as_its_first_frame() -> None:
    frames = [Image.fromarray(smooth_image(60, 50, seed)) for seed in range(3)]
    result = transcode(saved(frames[0], "png", save_all=True, append_images=frames[1:]), keep(format="png"))
    assert fact(result, "kept") and fact(result, "several")
    assert np.array_equal(opened(result.records[0].value), frames[0])
    # A file that only announces more frames has one.
    result = transcode(with_chunk(encoded("png"), b"acTL", struct.pack(">II", 1, 0)), keep(format="png"))
    assert fact(result, "kept") and not fact(result, "several")


@each_format
def test_the_record_does_not_depend_on_other_sizes_or_trailing_bytes(format: str) -> None:
    data = encoded(format)
    alone = transcode(data, keep(format=format))
    assert transcode(data + b"trailer" * 9, keep(format=format)) == alone
    both = transcode(data, ImageOptions(sizes=(Size(30, 30), KEEP), format=format))
    assert both.records[1] == alone.records[0] and both.records[0][1:] == (36, 30)


def test_a_huge_profile_is_not_unpacked() -> None:
    profile = b"icc\0\0" + zlib.compress(bytes(1 << 24))
    assert transcode(with_chunk(PNG, b"iCCP", profile), keep(format="png")).records[0].value == PNG


PROGRESSIVE = encoded("jpeg", progressive=True)
LAST_SCAN = PROGRESSIVE.rindex(b"\xff\xda")
PNG = encoded("png")


def webp(chunk: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


REFUSED = {
    **{
        f"{name}, cut to {share}": (encoded(name)[: int(share * len(encoded(name)))], keep(format=name), r"\w")
        for name in FORMATS
        for share in (0.3, 0.9)
    },
    **{f"{name}, large": (encoded(name), keep(format=name, max_pixels=2999), "max_pixels") for name in FORMATS},
    "jpeg that would fit, cut short": (jpeg(SMALL)[:800], options(64), r"\w"),
    "jpeg, too many scans": (
        PROGRESSIVE[:-2] + PROGRESSIVE[LAST_SCAN:-2] * 120 + b"\xff\xd9",
        keep(),
        "scans",
    ),
    "png, a damaged byte": (PNG[:-30] + bytes((PNG[-30] ^ 4,)) + PNG[-29:], keep(format="png"), r"\w"),
    "png, its header last": (PNG[:8] + PNG[33:-12] + PNG[8:33] + PNG[-12:], keep(format="png"), r"\w"),
    "webp, a short lossless chunk": (webp(b"VP8L\x01\0\0\0\x2f\0"), keep(format="webp"), r"\w"),
    "webp, a short header": (webp(b"VP8X\0\0\0\0"), keep(format="webp"), r"\w"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_broken_or_too_large_images_are_refused(name: str) -> None:
    data, asked, reason = REFUSED[name]
    with pytest.raises(ImageError, match=reason):
        transcode(data, asked)


WHOLE = {format: encoded(format, icc_profile=SRGB, exif=oriented(1)) for format in FORMATS}


@given(st.data(), st.sampled_from(FORMATS))
@settings(max_examples=examples(300), deadline=None)
def test_damaged_files_are_stored_or_refused(data: st.DataObject, format: str) -> None:
    try:
        result = transcode(data.draw(damaged(WHOLE[format])), keep(format=format))
    except ImageError:
        return
    assert result.source.height > 0 and result.source.width > 0


def test_a_jpeg_with_stray_bytes_is_stored_unchanged_and_read_as_pillow_does() -> None:
    strays = PROGRESSIVE[:-2] + b"stray bytes" + PROGRESSIVE[-2:]
    ((value, height, width),) = transcode(strays, keep()).records
    assert value[-13:-2] == b"stray bytes"
    pixels = decode_value(memoryview(value), "jpeg", "rgb", (height, width))
    assert np.array_equal(pixels, decode(PROGRESSIVE).pixels)
    out = np.empty((60, 50, 3), np.uint8)
    box = (0, 0, 60, 50)
    read_region([View(out, box)], uncut_region(memoryview(value), "jpeg", box), (60, 50))
    assert np.array_equal(out, pixels)


# --depth 16, --color rgba and --icc ignore


PHOTO = smooth_image(30, 40)
DEEP = PHOTO.astype(np.uint16) * 251 + 7
ALPHA = np.repeat(np.linspace(0, 65535, 40).round().astype(np.uint16)[np.newaxis], 30, axis=0)
OPTIONS = ImageOptions(sizes=(KEEP,), depth=16, format="raw")


def deep_file(pixels: np.ndarray, suffix: str = ".png") -> bytes:
    """Return `pixels`, RGB, RGBA or grey, as a lossless file."""
    order = [2, 1, 0, 3][: pixels.shape[2]] if pixels.ndim == 3 else None
    encoded, data = cv2.imencode(suffix, pixels if order is None else pixels[:, :, order])
    assert encoded
    return data.tobytes()


def stored(data: bytes, options: ImageOptions = OPTIONS) -> np.ndarray:
    ((value, height, width),) = transcode(data, options).records
    return decode_value(memoryview(value), options.format, options.color, (height, width), depth=options.depth)


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
@pytest.mark.parametrize("format", ["raw", "png"])
def test_16_bits_are_stored_exactly(suffix: str, format: Any) -> None:
    options = replace(OPTIONS, format=format)
    assert np.array_equal(stored(deep_file(DEEP, suffix), options), DEEP)
    gray = replace(options, color="gray")
    assert np.array_equal(stored(deep_file(DEEP[:, :, 0], suffix), gray), DEEP[:, :, 0])


def test_grey_of_12_bits_is_scaled_to_16() -> None:
    values = (DEEP[:, :, 0] >> 4).astype(np.uint16)
    decoded = sixteen.gray_values(Image.fromarray(values), 4095, False)[:, :, 0]
    assert np.abs(decoded - values * (65535 / 4095)).max() <= 0.5
    assert np.array_equal(sixteen.gray_values(Image.fromarray(values), 4095, True)[:, :, 0], 65535 - decoded)


@pytest.mark.parametrize("format", ["jpeg", "png"])
def test_8_bits_are_scaled_to_16(format: str) -> None:
    data = saved(PHOTO, format, icc_profile=SWAPPED)
    assert np.array_equal(stored(data), decode(data).pixels.astype(np.uint16) * 257)


def test_a_reduced_jpeg_is_resized_in_16_bits() -> None:
    data = saved(smooth_image(640, 640), "jpeg", quality=95)
    options = replace(OPTIONS, sizes=(Size(40, 40),))
    fine = stored(data, options)
    coarse = stored(data, replace(options, depth=8))
    assert np.abs(fine / 257 - coarse).max() <= 1
    assert (fine % 257 != 0).any(), "not merely widened"


@pytest.mark.parametrize(
    ("color", "shape"), [("rgb", (30, 40, 3)), ("gray", (30, 40)), ("keep", (30, 40, 3)), ("rgba", (30, 40, 4))]
)
@pytest.mark.parametrize("transparent", [False, True])
def test_colours_of_16_bits_are_those_of_8(color: Color, shape: tuple[int, ...], transparent: bool) -> None:
    pixels = np.dstack((DEEP, ALPHA)) if transparent else DEEP
    fine = decode(deep_file(pixels), Wanted(color, 16)).pixels
    coarse = decode(deep_file(pixels), color).pixels
    assert fine.shape == coarse.shape == shape
    assert np.abs(fine / 257 - coarse).max() <= 1.5
    if color == "rgba" and transparent:
        assert np.array_equal(fine, pixels)


@pytest.mark.parametrize(("color", "gray"), [("keep", True), ("gray", True), ("rgb", False), ("rgba", False)])
def test_grey_stays_grey_where_permitted(color: Color, gray: bool) -> None:
    pixels = decode(deep_file(DEEP[:, :, 0]), Wanted(color, 16)).pixels
    assert np.array_equal(pixels if gray else pixels[:, :, 1], DEEP[:, :, 0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_16_bits_are_stored_upright(orientation: int) -> None:
    exif = oriented(orientation)
    upright = decode(saved(PHOTO, "png", exif=exif)).pixels
    data = with_chunk(deep_file(PHOTO.astype(np.uint16) * 257), b"eXIf", exif.removeprefix(b"Exif\0\0"))
    assert np.array_equal(stored(data), upright.astype(np.uint16) * 257)


def test_a_profile_of_16_bits_is_refused_unless_ignored() -> None:
    data = with_chunk(deep_file(DEEP), b"iCCP", b"icc\0\0" + zlib.compress(SWAPPED))
    with pytest.raises(ImageError, match=r"its colour profile cannot be converted with 16 bits; --icc ignore"):
        stored(data)
    assert np.array_equal(stored(data, replace(OPTIONS, icc="ignore")), DEEP)


@each_format
@pytest.mark.parametrize("size", [KEEP, Size(20, 20)])
def test_an_ignored_profile_changes_no_pixel_and_is_still_counted(format: Any, size: Size) -> None:
    options = ImageOptions(sizes=(size,), format=format, icc="ignore")
    plain, profiled = saved(PHOTO, format), saved(PHOTO, format, icc_profile=SWAPPED)
    ignored = transcode(profiled, options)
    assert ignored.records == transcode(plain, options).records
    assert ignored.records != transcode(profiled, replace(options, icc="convert")).records
    assert fact(ignored, "profile")
    grey = saved(PHOTO[:, :, 0], "jpeg", icc_profile=GRAY_LINEAR)
    assert fact(transcode(grey, replace(options, color="gray", format="jpeg")), "profile")


@pytest.mark.parametrize("depth", [8, 16])
def test_a_jpeg_is_opaque(depth: Any) -> None:
    data = saved(PHOTO, "jpeg")
    pixels = stored(data, replace(OPTIONS, color="rgba", depth=depth))
    assert (pixels[:, :, 3] == (255 if depth == 8 else 65535)).all()
    assert np.array_equal(pixels[:, :, :3], stored(data, replace(OPTIONS, depth=depth)))
