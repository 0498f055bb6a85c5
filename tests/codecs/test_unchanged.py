"""--size keep: what is stored as it is, and what has to be decoded."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import damaged
from PIL import Image, PngImagePlugin

from effort import examples
from pictures import opened, oriented, saved, smooth_image, with_chunk
from presize.codecs import source_facts
from presize.codecs.decode import decode
from presize.codecs.stored_value import decode_value
from presize.codecs.transcode import Transcoded, transcode
from presize.datasets.reading.regions import read_region, uncut_region
from presize.errors import ImageError
from presize.options import KEEP, ImageOptions, Size
from profiles import SRGB, SWAPPED

PIXELS = smooth_image(60, 50)
FORMATS = ("jpeg", "png", "webp")
each_format = pytest.mark.parametrize("format", FORMATS)


def keep(**others: Any) -> ImageOptions:
    return ImageOptions(sizes=(KEEP,), **others)


def encoded(format: str, pixels: np.ndarray = PIXELS, **save: Any) -> bytes:
    return saved(pixels, format, **save)


def fact(result: Transcoded, name: str) -> int:
    return int(source_facts.unpack_facts(np.array([result.facts]), name)[0])


def transparent(opaque: int = 0) -> np.ndarray:
    return np.dstack((PIXELS, np.full((60, 50), opaque, np.uint8)))


def text(name: str) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Title", name)
    return info


STORED_AS_THEY_ARE = [
    (encoded("jpeg"), keep(), "baseline JPEG"),
    (encoded("jpeg", progressive=True), keep(), "progressive JPEG"),
    (encoded("jpeg", PIXELS[:, :, 0]), keep(), "grey is read as RGB"),
    (encoded("jpeg", PIXELS[:, :, 0]), keep(color="gray"), "grey JPEG"),
    (encoded("jpeg", exif=oriented(1), icc_profile=SRGB, comment=b"me"), keep(), "metadata aside"),
    (encoded("png"), keep(format="png"), "PNG"),
    (encoded("png", PIXELS[:, :, 0]), keep(format="png", color="gray"), "grey PNG"),
    (encoded("png", PIXELS[:, :, 0]), keep(format="png"), "grey PNG is read as RGB"),
    (encoded("png", PIXELS[:, :, 0]), keep(format="png", color="keep"), "grey PNG, kept grey"),
    (encoded("png", exif=oriented(1), icc_profile=SRGB, pnginfo=text("me")), keep(format="png"), "metadata aside"),
    (encoded("webp"), keep(format="webp"), "lossy WebP"),
    (encoded("webp", lossless=True), keep(format="webp"), "lossless WebP"),
    (encoded("webp", exif=oriented(1), icc_profile=SRGB, xmp=b"<x/>"), keep(format="webp"), "metadata aside"),
]


@pytest.mark.parametrize(("data", "options", "reason"), STORED_AS_THEY_ARE, ids=[row[2] for row in STORED_AS_THEY_ARE])
def test_what_is_in_the_format_already_is_stored_as_it_is(data: bytes, options: ImageOptions, reason: str) -> None:
    result = transcode(data, options)
    ((value, height, width),) = result.records
    assert fact(result, "kept"), reason
    assert (height, width) == result.source == (60, 50)
    assert len(value) <= len(data)
    stored = decode_value(memoryview(value), options.format, options.color, (height, width))
    assert np.array_equal(stored, decode(data, options.color).pixels)


@each_format
def test_metadata_is_left_out_unless_asked_for(format: str) -> None:
    data = encoded(format, exif=oriented(1), icc_profile=SRGB)
    plain = opened(transcode(data, keep(format=format)).records[0].value)
    assert "exif" not in plain.info and "icc_profile" not in plain.info
    assert opened(transcode(data, keep(format=format, keep_metadata=True)).records[0].value).info["exif"]


DECODED = [
    (encoded("png"), keep(), "another format"),
    (encoded("jpeg", exif=oriented(6)), keep(), "it lies on its side"),
    (encoded("jpeg"), keep(color="gray"), "it has colours"),
    (encoded("jpeg", icc_profile=SWAPPED), keep(), "its profile changes its colours"),
    (encoded("png", icc_profile=SWAPPED), keep(format="png"), "its profile changes its colours"),
    (encoded("png", exif=oriented(3)), keep(format="png"), "it stands on its head"),
    (encoded("png", transparent()), keep(format="png"), "transparency is composed on white"),
    (encoded("png"), keep(format="png", color="gray"), "it has colours"),
    (encoded("png", PIXELS[:, :, 0].astype(np.uint16) * 257), keep(format="png"), "16 bits"),
    (encoded("png", PIXELS[:, :, 0] > 128), keep(format="png"), "1 bit"),
    (encoded("png", transparency=(1, 2, 3)), keep(format="png"), "a transparent colour"),
    (encoded("webp", transparent()), keep(format="webp"), "transparency is composed on white"),
    (encoded("webp", transparent(), lossless=True), keep(format="webp"), "lossless, with alpha"),
    (encoded("webp", exif=oriented(8)), keep(format="webp"), "it lies on its side"),
    (encoded("webp", icc_profile=SWAPPED), keep(format="webp"), "its profile changes its colours"),
    (encoded("png"), keep(format="raw"), "raw pixels"),
]


@pytest.mark.parametrize(("data", "options", "reason"), DECODED, ids=[row[2] for row in DECODED])
def test_all_else_is_encoded_once_at_its_own_size(data: bytes, options: ImageOptions, reason: str) -> None:
    result = transcode(data, options)
    ((value, height, width),) = result.records
    assert not fact(result, "kept"), reason
    assert (height, width) == result.source == decode(data).pixels.shape[:2]
    stored = decode_value(memoryview(value), options.format, options.color, (height, width))
    assert np.abs(stored.astype(int) - decode(data, options.color).pixels).mean() < 4


def test_an_animation_is_stored_as_its_first_frame() -> None:
    frames = [Image.fromarray(smooth_image(60, 50, seed)) for seed in range(3)]
    result = transcode(saved(frames[0], "png", save_all=True, append_images=frames[1:]), keep(format="png"))
    assert fact(result, "kept") and fact(result, "several")
    assert np.array_equal(opened(result.records[0].value), frames[0])


def test_a_png_that_announces_an_animation_of_one_frame_has_one() -> None:
    result = transcode(with_chunk(encoded("png"), b"acTL", struct.pack(">II", 1, 0)), keep(format="png"))
    assert fact(result, "kept") and not fact(result, "several")


@each_format
def test_the_record_is_the_same_whatever_other_sizes_there_are(format: str) -> None:
    data = encoded(format)
    alone = transcode(data, keep(format=format))
    both = transcode(data, ImageOptions(sizes=(Size(30, 30), KEEP), format=format))
    assert both.records[1] == alone.records[0]
    assert both.records[0][1:] == (36, 30)


@each_format
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_file_that_is_cut_short_is_refused(format: str, share: float) -> None:
    data = encoded(format)
    with pytest.raises(ImageError):
        transcode(data[: int(share * len(data))], keep(format=format))


@each_format
def test_what_follows_the_image_is_not_stored(format: str) -> None:
    data = encoded(format)
    assert transcode(data + b"trailer" * 9, keep(format=format)) == transcode(data, keep(format=format))


def test_a_png_with_a_damaged_byte_is_never_stored_as_it_is() -> None:
    data = bytearray(encoded("png"))
    data[-30] ^= 4
    with pytest.raises(ImageError):
        transcode(bytes(data), keep(format="png"))


@each_format
def test_an_image_of_too_many_pixels_is_refused(format: str) -> None:
    with pytest.raises(ImageError, match="max_pixels"):
        transcode(encoded(format), keep(format=format, max_pixels=2999))


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    data = encoded("jpeg", progressive=True)
    last = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="scans"):
        transcode(data[:-2] + data[last:-2] * 120 + b"\xff\xd9", keep())


def test_a_huge_profile_is_not_unpacked() -> None:
    data = encoded("png")
    profile = b"icc\0\0" + zlib.compress(bytes(1 << 24))
    assert transcode(with_chunk(data, b"iCCP", profile), keep(format="png")).records[0].value == data


WHOLE = {format: encoded(format, icc_profile=SRGB, exif=oriented(1)) for format in FORMATS}


@given(st.data(), st.sampled_from(FORMATS))
@settings(max_examples=examples(150), deadline=None)
def test_damaged_files_are_stored_or_refused(data: st.DataObject, format: str) -> None:
    try:
        result = transcode(data.draw(damaged(WHOLE[format])), keep(format=format))
    except ImageError:
        return
    assert result.source.height > 0 and result.source.width > 0


def test_a_jpeg_with_stray_bytes_is_stored_as_it_is_and_read_as_pillow_reads_it() -> None:
    data = encoded("jpeg", progressive=True)
    strays = data[:-2] + b"stray bytes" + data[-2:]
    ((value, height, width),) = transcode(strays, keep()).records
    assert value[-13:-2] == b"stray bytes"
    pixels = decode_value(memoryview(value), "jpeg", "rgb", (height, width))
    assert np.array_equal(pixels, decode(data).pixels)
    out = np.empty((60, 50, 3), np.uint8)
    read_region(out, uncut_region(memoryview(value), "jpeg", (0, 0, 60, 50)), (60, 50), flip=False, exact=True)
    assert np.array_equal(out, pixels)


def test_a_png_that_does_not_begin_with_its_header_is_refused() -> None:
    data = encoded("png")
    moved = data[:8] + data[33:-12] + data[8:33] + data[-12:]
    with pytest.raises(ImageError):
        transcode(moved, keep(format="png"))


@each_format
def test_an_ignored_profile_is_counted(format: str) -> None:
    result = transcode(encoded(format, icc_profile=SWAPPED), keep(format=format, icc="ignore"))
    assert fact(result, "kept") and fact(result, "profile")


@pytest.mark.parametrize("chunk", [b"VP8L\x01\0\0\0\x2f\0", b"VP8X\0\0\0\0"])
def test_a_webp_with_a_chunk_that_is_too_short_is_refused(chunk: bytes) -> None:
    with pytest.raises(ImageError):
        transcode(b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk, keep(format="webp"))
