"""--size keep: what is stored as it is, and what has to be decoded."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, PngImagePlugin

from effort import examples
from pictures import smooth_image
from presize.codecs import source_facts
from presize.codecs.decode import decode
from presize.codecs.stored_value import decode_value
from presize.codecs.transcode import Transcoded, transcode
from presize.datasets.reading.regions import View, read_region, uncut_region
from presize.errors import ImageError
from presize.options import KEEP, ImageOptions, Size
from profiles import SWAPPED

PIXELS = smooth_image(60, 50)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def keep(**others: Any) -> ImageOptions:
    return ImageOptions(sizes=(KEEP,), **others)


def encoded(format: str, pixels: np.ndarray = PIXELS, **save: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, **save)
    return buffer.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def kept(result: Transcoded) -> bool:
    return bool(source_facts.unpack_facts(np.array([result.facts]), "kept")[0])


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
    (encoded("jpeg", exif=exif(1), icc_profile=SRGB, comment=b"me"), keep(), "metadata aside"),
    (encoded("png"), keep(format="png"), "PNG"),
    (encoded("png", PIXELS[:, :, 0]), keep(format="png", color="gray"), "grey PNG"),
    (encoded("png", PIXELS[:, :, 0]), keep(format="png"), "grey PNG is read as RGB"),
    (encoded("png", PIXELS[:, :, 0]), keep(format="png", color="keep"), "grey PNG, kept grey"),
    (encoded("png", exif=exif(1), icc_profile=SRGB, pnginfo=text("me")), keep(format="png"), "metadata aside"),
    (encoded("webp"), keep(format="webp"), "lossy WebP"),
    (encoded("webp", lossless=True), keep(format="webp"), "lossless WebP"),
    (encoded("webp", exif=exif(1), icc_profile=SRGB, xmp=b"<x/>"), keep(format="webp"), "metadata aside"),
]


@pytest.mark.parametrize(("data", "options", "reason"), STORED_AS_THEY_ARE, ids=[row[2] for row in STORED_AS_THEY_ARE])
def test_what_is_in_the_format_already_is_stored_as_it_is(data: bytes, options: ImageOptions, reason: str) -> None:
    result = transcode(data, options)
    ((value, height, width),) = result.records
    assert kept(result), reason
    assert (height, width) == result.source == (60, 50)
    assert len(value) <= len(data)
    stored = decode_value(memoryview(value), options.format, options.color, (height, width))
    assert np.array_equal(stored, decode(data, options.color).pixels)


@pytest.mark.parametrize(
    "data", [encoded(format, exif=exif(1), icc_profile=SRGB) for format in ("jpeg", "png", "webp")]
)
def test_metadata_is_left_out_unless_asked_for(data: bytes) -> None:
    format = Image.open(io.BytesIO(data)).format.lower()
    plain = Image.open(io.BytesIO(transcode(data, keep(format=format)).records[0].value))
    assert "exif" not in plain.info and "icc_profile" not in plain.info
    full = Image.open(io.BytesIO(transcode(data, keep(format=format, keep_metadata=True)).records[0].value))
    assert full.info["exif"]


DECODED = [
    (encoded("png"), keep(), "another format"),
    (encoded("jpeg", exif=exif(6)), keep(), "it lies on its side"),
    (encoded("jpeg"), keep(color="gray"), "it has colours"),
    (encoded("jpeg", icc_profile=SWAPPED), keep(), "its profile changes its colours"),
    (encoded("png", icc_profile=SWAPPED), keep(format="png"), "its profile changes its colours"),
    (encoded("png", exif=exif(3)), keep(format="png"), "it stands on its head"),
    (encoded("png", transparent()), keep(format="png"), "transparency is composed on white"),
    (encoded("png"), keep(format="png", color="gray"), "it has colours"),
    (encoded("png", PIXELS[:, :, 0].astype(np.uint16) * 257), keep(format="png"), "16 bits"),
    (encoded("png", PIXELS[:, :, 0] > 128), keep(format="png"), "1 bit"),
    (encoded("png", transparency=(1, 2, 3)), keep(format="png"), "a transparent colour"),
    (encoded("webp", transparent()), keep(format="webp"), "transparency is composed on white"),
    (encoded("webp", transparent(), lossless=True), keep(format="webp"), "lossless, with alpha"),
    (encoded("webp", exif=exif(8)), keep(format="webp"), "it lies on its side"),
    (encoded("webp", icc_profile=SWAPPED), keep(format="webp"), "its profile changes its colours"),
    (encoded("png"), keep(format="raw"), "raw pixels"),
]


@pytest.mark.parametrize(("data", "options", "reason"), DECODED, ids=[row[2] for row in DECODED])
def test_all_else_is_encoded_once_at_its_own_size(data: bytes, options: ImageOptions, reason: str) -> None:
    result = transcode(data, options)
    ((value, height, width),) = result.records
    assert not kept(result), reason
    assert (height, width) == result.source == decode(data).pixels.shape[:2]
    stored = decode_value(memoryview(value), options.format, options.color, (height, width))
    assert np.abs(stored.astype(int) - decode(data, options.color).pixels).mean() < 4


def test_an_animation_is_stored_as_its_first_frame() -> None:
    frames = [Image.fromarray(smooth_image(60, 50, seed)) for seed in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "png", save_all=True, append_images=frames[1:])
    result = transcode(buffer.getvalue(), keep(format="png"))
    assert kept(result) and source_facts.unpack_facts(np.array([result.facts]), "several")[0] == 1
    assert np.array_equal(Image.open(io.BytesIO(result.records[0].value)), frames[0])


def test_a_png_that_announces_an_animation_of_one_frame_has_one() -> None:
    plain = encoded("png")
    payload = b"acTL" + struct.pack(">II", 1, 0)
    chunk = struct.pack(">I", 8) + payload + struct.pack(">I", zlib.crc32(payload))
    result = transcode(plain[:33] + chunk + plain[33:], keep(format="png"))
    assert kept(result) and source_facts.unpack_facts(np.array([result.facts]), "several")[0] == 0


@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
def test_the_record_is_the_same_whatever_other_sizes_there_are(format: str) -> None:
    data = encoded(format)
    alone = transcode(data, keep(format=format))
    both = transcode(data, ImageOptions(sizes=(Size(30, 30), KEEP), format=format))
    assert both.records[1] == alone.records[0]
    assert both.records[0][1:] == (36, 30)


@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_file_that_is_cut_short_is_refused(format: str, share: float) -> None:
    data = encoded(format)
    with pytest.raises(ImageError):
        transcode(data[: int(share * len(data))], keep(format=format))


def test_what_follows_the_image_is_not_stored() -> None:
    for format in ("jpeg", "png", "webp"):
        data = encoded(format)
        assert (
            transcode(data + b"trailer" * 9, keep(format=format)).records
            == transcode(data, keep(format=format)).records
        )


def test_a_png_with_a_damaged_byte_is_never_stored_as_it_is() -> None:
    data = bytearray(encoded("png"))
    data[-30] ^= 4
    with pytest.raises(ImageError):
        transcode(bytes(data), keep(format="png"))


def test_an_image_of_too_many_pixels_is_refused() -> None:
    for format in ("jpeg", "png", "webp"):
        with pytest.raises(ImageError, match="max_pixels"):
            transcode(encoded(format), keep(format=format, max_pixels=2999))


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    data = encoded("jpeg", progressive=True)
    last = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="scans"):
        transcode(data[:-2] + data[last:-2] * 120 + b"\xff\xd9", keep())


def test_a_huge_profile_is_not_unpacked() -> None:
    packed = zlib.compress(bytes(1 << 24))
    payload = b"icc\0\0" + packed
    chunk = struct.pack(">I", len(payload)) + b"iCCP" + payload + struct.pack(">I", zlib.crc32(b"iCCP" + payload))
    data = encoded("png")
    result = transcode(data[:33] + chunk + data[33:], keep(format="png"))
    assert result.records[0].value == data


@given(data=st.data(), format=st.sampled_from(["jpeg", "png", "webp"]))
@settings(max_examples=examples(300), deadline=None)
def test_damaged_files_are_stored_or_refused(data: st.DataObject, format: str) -> None:
    broken = bytearray(encoded(format, icc_profile=SRGB, exif=exif(1)))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(len(broken) // 2, len(broken)))
    try:
        result = transcode(bytes(broken[:cut]), keep(format=format))
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
    box = (0, 0, 60, 50)
    read_region([View(out, box)], uncut_region(memoryview(value), "jpeg", box), (60, 50))
    assert np.array_equal(out, pixels)


def test_a_png_that_does_not_begin_with_its_header_is_refused() -> None:
    data = encoded("png")
    moved = data[:8] + data[33:-12] + data[8:33] + data[-12:]
    with pytest.raises(ImageError):
        transcode(moved, keep(format="png"))


@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
def test_an_ignored_profile_is_counted(format: str) -> None:
    result = transcode(encoded(format, icc_profile=SWAPPED), keep(format=format, icc="ignore"))
    assert kept(result) and source_facts.unpack_facts(np.array([result.facts]), "profile")[0] == 1


@pytest.mark.parametrize("chunk", [b"VP8L\x01\0\0\0\x2f\0", b"VP8X\0\0\0\0"])
def test_a_webp_with_a_chunk_that_is_too_short_is_refused(chunk: bytes) -> None:
    with pytest.raises(ImageError):
        transcode(b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk, keep(format="webp"))
