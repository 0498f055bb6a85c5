"""The codec fingerprint: it changes with every codec that a build's options need, and with no other."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import cv2
import pytest
from PIL import Image

from jpegs import without_compiled_code
from presize.codecs import decode, fingerprint, pillow_decoder, pillow_resize, resize, transcode
from presize.codecs.fingerprint import codecs_digest
from presize.codecs.golden import decoder_images, source_images
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.sniff import sniff
from presize.errors import ImageError
from presize.options import ImageOptions, Size

JPEG = ImageOptions()
OTHERS = {
    "webp": replace(JPEG, format="webp"),
    "png": replace(JPEG, format="png"),
    "raw": replace(JPEG, format="raw"),
    "untiled": replace(JPEG, tiles=False),
    "Pillow": replace(JPEG, resize_backend="pillow"),
    "lanczos": replace(JPEG, filter="lanczos"),
    "pad": replace(JPEG, fit="pad"),
    "grey": replace(JPEG, color="gray"),
    "quality": replace(JPEG, quality=80),
    "4:4:4": replace(JPEG, subsampling="444"),
    "upscale": replace(JPEG, upscale=True),
    "metadata": replace(JPEG, keep_metadata=True),
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    codecs_digest.cache_clear()
    yield
    codecs_digest.cache_clear()


def altered(function: Any) -> Any:
    """Wrap `function` to change a value near the end of its result."""

    def alter(*args: Any, **options: Any) -> Any:
        result = function(*args, **options).copy()
        result.reshape(-1)[-2] ^= 64  # the last value may be the X of BGRX
        return result

    return alter


def lower_quality(imencode: Any) -> Any:
    return lambda suffix, pixels, settings: imencode(suffix, pixels, (settings[0], settings[1] - 1, *settings[2:]))


def last_byte_changed(save: Any) -> Any:
    def write(image: Image.Image, file: io.BytesIO, *args: Any, **options: Any) -> None:
        save(image, file, *args, **options)
        file.getbuffer()[-1] ^= 1

    return write


def another_width(_: Any) -> Any:
    return lambda mcus: min(mcus, 4)


PIXELS = {"jpeg", "webp", "raw", "grey", "Pillow"}
CHANGES = [
    (vars(jpeg_decoder), "decode_with_libjpeg", altered, PIXELS),
    (vars(pillow_decoder), "upright", altered, PIXELS),
    (vars(decode), "pixels_of", altered, PIXELS),
    (vars(cv2), "imencode", lower_quality, {"jpeg", "grey", "Pillow"}),
    (resize.BACKENDS, "presize", altered, PIXELS - {"Pillow"}),
    (resize.BACKENDS, "pillow", altered, {"Pillow"}),
    (vars(fingerprint), "restart_interval", another_width, {"jpeg", "grey", "Pillow"}),
]


def noticed_by(names: set[str], change: Callable[[], None]) -> set[str]:
    options = {name: OTHERS.get(name, JPEG) for name in names}
    before = {name: codecs_digest(image) for name, image in options.items()}
    codecs_digest.cache_clear()
    change()
    return {name for name, image in options.items() if codecs_digest(image) != before[name]}


@pytest.mark.parametrize(("names", "name", "alter", "noticed"), CHANGES, ids=[name for _, name, _, _ in CHANGES])
def test_a_change_is_detected_by_the_builds_that_it_affects(
    names: Any, name: str, alter: Any, noticed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = PIXELS | {"untiled"} if name == "restart_interval" else PIXELS
    assert noticed_by(asked, lambda: monkeypatch.setitem(names, name, alter(names[name]))) == noticed


def test_another_encoder_of_webp_is_detected_by_builds_of_webp(monkeypatch: pytest.MonkeyPatch) -> None:
    change = last_byte_changed(Image.Image.save)
    assert noticed_by({"jpeg", "webp", "raw"}, lambda: monkeypatch.setattr(Image.Image, "save", change)) == {"webp"}


def test_every_option_that_changes_bytes_changes_it() -> None:
    digests = {codecs_digest(options) for options in (JPEG, *OTHERS.values())}
    is_pillows_own = pillow_resize.installed_order() == "horizontal first"
    assert len(digests) == 1 + len(OTHERS) - is_pillows_own


def test_sizes_and_limits_do_not_change_it() -> None:
    other = replace(JPEG, sizes=(Size(100, 200), Size(5, 5)), max_pixels=10)
    assert codecs_digest(other) == codecs_digest(JPEG)


def test_it_does_not_depend_on_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = codecs_digest(JPEG)
    codecs_digest.cache_clear()
    without_compiled_code(monkeypatch)
    assert codecs_digest(JPEG) == before


def test_the_golden_images_cover_every_format_scale_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    images = source_images()
    formats = "jpeg png gif bmp webp tiff ppm avif jpeg2000"
    assert {sniff(data) for data in images.values()} == set(formats.split())
    scales = []
    scale_of = transcode.decode_scale
    monkeypatch.setattr(transcode, "decode_scale", lambda targets: scales.append(scale_of(targets)) or scales[-1])
    codecs_digest(JPEG)
    assert set(scales) == {1, 2, 4, 8}


def test_it_records_a_format_that_this_pillow_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = codecs_digest(JPEG)
    codecs_digest.cache_clear()
    open_image = pillow_decoder.open_image

    def lacking(data: bytes, name: str) -> Any:
        if name == "avif":
            raise ImageError("broken AVIF: not built in")
        return open_image(data, name)

    monkeypatch.setattr(pillow_decoder, "open_image", lacking)
    assert codecs_digest(JPEG) != before


@pytest.mark.parametrize(
    ("images", "digest"),
    [
        (source_images, "cfc3f329fc12e62d"),  # results of codecs on these are part of the identity of datasets
        (decoder_images, "4b43f5f837a5ec23"),
    ],
)
def test_the_golden_images_never_change(images: Callable[[], dict[str, bytes]], digest: str) -> None:
    content = b"".join(name.encode() + data for name, data in images().items())
    assert hashlib.sha256(content).hexdigest()[:16] == digest
