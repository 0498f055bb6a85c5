"""Formats that few images have: recognised by content, decoded by Pillow or a plug-in of it."""

from __future__ import annotations

import importlib
import io
import struct
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from effort import examples
from pictures import smooth_image
from presize.codecs import plugins
from presize.codecs.decode import decode
from presize.codecs.exact import decode_exact
from presize.codecs.sniff import is_tga, sniff
from presize.codecs.source_facts import KINDS, unpack_facts
from presize.codecs.transcode import transcode
from presize.errors import ImageError, NotAnImageError
from presize.options import ImageOptions, Size

PIXELS = smooth_image(30, 40)


def encoded(format: str, pixels: np.ndarray | Image.Image = PIXELS, **save: Any) -> bytes:
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, format, **save)
    return buffer.getvalue()


GRAY, ALPHA = PIXELS[:, :, 0], np.dstack((PIXELS, np.full((30, 40), 255, np.uint8)))
PALETTE = Image.fromarray(PIXELS).quantize(16)
FOOTER_BYTES = 26

OLD = {
    "TGA": encoded("TGA"),
    "TGA, run-length": encoded("TGA", compression="tga_rle"),
    "TGA without a footer": encoded("TGA")[:-FOOTER_BYTES],
    "TGA, run-length, without a footer": encoded("TGA", compression="tga_rle")[:-FOOTER_BYTES],
    "TGA, grey": encoded("TGA", GRAY)[:-FOOTER_BYTES],
    "TGA, palette": encoded("TGA", PALETTE)[:-FOOTER_BYTES],
    "TGA, alpha": encoded("TGA", ALPHA),
    "ICO": encoded("ICO", sizes=[(40, 30)]),
    "ICO of bitmaps": encoded("ICO", ALPHA, sizes=[(40, 30)], bitmap_format="bmp"),
    "ICO of several sizes": encoded("ICO", sizes=[(16, 16), (40, 30)]),
    "SGI": encoded("SGI"),
    "SGI, grey": encoded("SGI", GRAY),
    "PCX": encoded("PCX"),
    "PCX, palette": encoded("PCX", PALETTE),
    "PCX, 1 bit": encoded("PCX", Image.fromarray(GRAY > 128)),
    "DDS": encoded("DDS"),
    "DDS, alpha": encoded("DDS", ALPHA),
    "DDS, compressed": encoded("DDS", smooth_image(32, 40), pixel_format="DXT1"),
}


@pytest.mark.parametrize("name", OLD)
def test_old_formats_are_decoded_as_pillow_does(name: str) -> None:
    format = name[:3]
    assert sniff(OLD[name]) == format.lower()
    decoded = decode(OLD[name])
    with Image.open(io.BytesIO(OLD[name]), formats=(format,)) as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(decoded.pixels, expected)
    kind = KINDS[unpack_facts(np.array([decoded.facts.pack()]), "kind")[0]]
    assert kind == ("other" if format in ("SGI", "PCX") else format.lower())


def test_an_icon_may_be_a_png_larger_than_its_directory_says() -> None:
    png = encoded("PNG", smooth_image(300, 400))
    icon = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 24, len(png), 22) + png
    assert decode(icon).pixels.shape == (300, 400, 3)
    with pytest.raises(ImageError, match="max_pixels"):
        decode(icon, max_pixels=300 * 400 - 1)


@pytest.mark.parametrize("name", [name for name in OLD if "grey" in name or "palette" in name])
def test_masks_of_old_formats_keep_their_numbers(name: str) -> None:
    with Image.open(io.BytesIO(OLD[name])) as image:
        expected = np.asarray(image)
    values, facts = decode_exact(OLD[name], 10**6)
    assert np.array_equal(values, expected) and facts.pack()


NO_IMAGES = {
    "zeros": bytes(4000),
    "text": b"some words, and then some more\n" * 99,
    "numbers": np.arange(1000, dtype=np.float32).tobytes(),
    "a NumPy array": b"\x93NUMPY\x01\x00v\x00" + bytes(200),
    "a ZIP": b"PK\x03\x04" + bytes(200),
    "an MP4": b"\0\0\0\x18ftypmp42" + bytes(200),
    "a cursor": b"\0\0\2\0\1\0" + bytes(200),
}


@pytest.mark.parametrize("name", NO_IMAGES)
def test_other_files_are_no_images(name: str) -> None:
    with pytest.raises(NotAnImageError):
        decode(NO_IMAGES[name])


@pytest.mark.parametrize("name", [name for name in OLD if "without a footer" in name])
def test_a_tga_without_a_footer_has_exactly_the_bytes_that_it_announces(name: str) -> None:
    assert is_tga(OLD[name])
    assert not is_tga(OLD[name] + b"x")
    assert not is_tga(OLD[name][:-1])


@given(data=st.data(), name=st.sampled_from(sorted(OLD)))
@settings(max_examples=examples(400), deadline=None)
def test_damaged_files_of_old_formats_are_decoded_or_refused_without_a_warning(data: st.DataObject, name: str) -> None:
    broken = bytearray(OLD[name])
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, min(len(broken), 200) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(broken)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            decode(bytes(broken[:cut] if data.draw(st.booleans()) else broken), max_pixels=10**6)
        except ImageError:
            pass


# Plug-ins


MISSING = {"heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "jxl": b"\xff\x0a" + bytes((0x00, 0x08)) + bytes(20)}


@pytest.mark.parametrize("name", MISSING)
def test_a_plug_in_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, plugins.PLUGINS[name].module, None)
    assert sniff(MISSING[name]) == name
    with pytest.raises(ImageError, match=rf"^{name.upper()} needs a plug-in of Pillow; install presize\[{name}\]$"):
        decode(MISSING[name])


def test_the_versions_of_plug_ins_are_told_for_the_files_that_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda distribution: f"of {distribution}")
    assert plugins.versions([".jpg", ".png"]) == {}
    assert plugins.versions([".jpg", ".hif"]) == {"pillow-heif": "of pillow-heif"}
    assert plugins.versions([".jxl", ".heic"]).keys() == {"pillow-heif", "pillow-jxl-plugin"}


def test_a_plug_in_that_is_missing_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plugins, "PLUGINS", {"heic": plugins.PLUGINS["heic"]._replace(distribution="no-such-thing-here")}
    )
    assert plugins.versions([".heic"]) == {"no-such-thing-here": "none"}


@pytest.fixture(scope="module", params=["heic", "jxl"])
def plugged(request: pytest.FixtureRequest) -> str:
    """A format whose plug-in is installed."""
    name = str(request.param)
    plugin = plugins.PLUGINS[name]
    package = pytest.importorskip(plugin.module.partition(".")[0])
    if name == "heic":
        package.register_heif_opener()
    importlib.import_module(plugin.module)
    return name


SAVE = {"heic": {"format": "HEIF", "quality": 95, "chroma": 444}, "jxl": {"format": "JXL", "lossless": True}}


@pytest.mark.parametrize("shape", [(30, 40), (33, 41), (64, 64), (200, 100), (9, 300)])
def test_plug_ins_decode(plugged: str, shape: tuple[int, int]) -> None:
    pixels = smooth_image(*shape)
    data = encoded(pixels=pixels, **SAVE[plugged])
    assert sniff(data) == plugged
    decoded = decode(data)
    assert decoded.pixels.shape == pixels.shape
    assert np.abs(decoded.pixels.astype(int) - pixels).mean() <= 3
    assert decoded.facts.kind == plugged
    facts = transcode(data, ImageOptions(sizes=(Size(8, 8),))).facts
    assert KINDS[unpack_facts(np.array([facts]), "kind")[0]] == plugged


def test_an_image_of_a_plug_in_with_too_many_pixels_is_refused(plugged: str) -> None:
    data = encoded(pixels=smooth_image(50, 60), **SAVE[plugged])
    assert decode(data, max_pixels=3000).pixels.shape == (50, 60, 3)
    with pytest.raises(ImageError, match="60 x 50 pixels, more than max_pixels"):
        decode(data, max_pixels=2999)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_images_of_plug_ins_are_upright_once(plugged: str, orientation: int) -> None:
    upright = smooth_image(48, 64)
    turn = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[orientation]
    lying = Image.fromarray(upright) if turn is None else Image.fromarray(upright).transpose(turn)
    tags = Image.Exif()
    tags[0x0112] = orientation
    if plugged == "jxl":  # what cjxl makes of a JPEG, which comes back as that JPEG
        buffer = io.BytesIO(encoded("JPEG", lying, quality=95, subsampling=0, exif=tags))
        with Image.open(buffer) as jpeg:
            jpeg.filename = ""
            data = encoded("JXL", jpeg, lossless_jpeg=False, lossless=True, exif=tags.tobytes())
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(image.convert("RGB"))
    else:
        data, expected = encoded(pixels=lying, exif=tags.tobytes(), **SAVE[plugged]), upright
    pixels = decode(data).pixels
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).mean() <= 3


def test_transparency_of_plug_ins_is_kept_where_asked_for(plugged: str) -> None:
    pixels = np.dstack((PIXELS, np.repeat(np.linspace(0, 255, 40).round().astype(np.uint8)[np.newaxis], 30, axis=0)))
    decoded = decode(encoded(pixels=pixels, **SAVE[plugged]), "rgba").pixels
    assert np.abs(decoded[:, :, 3].astype(int) - pixels[:, :, 3]).max() <= 2


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_damaged_files_of_plug_ins_are_decoded_or_refused(data: st.DataObject, plugged: str) -> None:
    broken = bytearray(encoded(pixels=PIXELS, **SAVE[plugged]))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(broken), max_pixels=10**6)
    except ImageError:
        pass
