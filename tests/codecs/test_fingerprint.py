"""What the codecs make of the golden images changes with every codec that a build's options need, and with no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from presize.codecs import decode, encode, pillow_decoder, resize, transcode
from presize.codecs import fingerprint as outcome
from presize.codecs.compiled import Compiled
from presize.codecs.golden import source_images
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
    outcome._digest.cache_clear()
    yield
    outcome._digest.cache_clear()


def altered(function: Any) -> Any:
    """`function`, whose result has another byte near its end."""

    def alter(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        if isinstance(result, bytes):
            return result[:-1] + bytes((result[-1] ^ 1,))
        result = result.copy()
        result.reshape(-1)[-2] ^= 64  # the last may be the X of BGRX
        return result

    return alter


CHANGES = [
    (jpeg_decoder, "decode_with_libjpeg", {"jpeg", "webp", "raw", "grey", "Pillow"}),
    (pillow_decoder, "upright", {"jpeg", "webp", "raw", "grey", "Pillow"}),
    (decode, "pixels_of", {"jpeg", "webp", "raw", "grey", "Pillow"}),
    (encode, "_pillow", {"webp"}),
    (encode, "_tiled_jpeg", {"jpeg", "grey", "Pillow"}),
    (resize, "_cykooz", {"jpeg", "webp", "raw", "grey"}),
    (resize, "_pillow", {"Pillow"}),
]


@pytest.mark.parametrize(("module", "name", "noticed"), CHANGES, ids=[name for _, name, _ in CHANGES])
def test_a_change_is_noticed_by_the_builds_that_it_changes(
    module: Any, name: str, noticed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"jpeg": JPEG} | {name: OTHERS[name] for name in ("webp", "raw", "grey", "Pillow")}
    before = {name: outcome.codecs_digest(image) for name, image in options.items()}
    outcome._digest.cache_clear()
    function = altered(getattr(module, name))
    monkeypatch.setattr(module, name, function)
    backends = {"_cykooz": "cykooz", "_pillow": "pillow"}
    if module is resize:
        monkeypatch.setitem(resize.BACKENDS, backends[name], function)
    after = {name: outcome.codecs_digest(image) for name, image in options.items()}
    assert {name for name in options if before[name] != after[name]} == noticed


def test_another_width_of_tiles_is_noticed_by_the_builds_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"jpeg": JPEG} | {name: OTHERS[name] for name in ("untiled", "webp", "raw", "grey")}
    before = {name: outcome.codecs_digest(image) for name, image in options.items()}
    outcome._digest.cache_clear()
    monkeypatch.setattr(outcome, "restart_interval", lambda mcus: min(mcus, 4))
    after = {name: outcome.codecs_digest(image) for name, image in options.items()}
    assert {name for name in options if before[name] != after[name]} == {"jpeg", "grey"}


def test_every_option_that_changes_bytes_changes_it() -> None:
    digests = {outcome.codecs_digest(options) for options in (JPEG, *OTHERS.values())}
    assert len(digests) == 1 + len(OTHERS)


def test_sizes_and_limits_do_not() -> None:
    other = replace(JPEG, sizes=(Size(100, 200), Size(5, 5)), max_pixels=10)
    assert outcome.codecs_digest(other) == outcome.codecs_digest(JPEG)


def test_it_is_the_same_whoever_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = outcome.codecs_digest(JPEG)
    outcome._digest.cache_clear()
    monkeypatch.setattr(jpeg_decoder, "compiled", Compiled(None, jpeg_decoder.check))
    assert outcome.codecs_digest(JPEG) == before


def test_the_golden_images_are_of_every_format_scale_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    images = source_images()
    assert {sniff(data) for data in images.values()} == {
        "jpeg",
        "png",
        "gif",
        "bmp",
        "webp",
        "tiff",
        "ppm",
        "avif",
        "jpeg2000",
    }
    scales = []
    scale_of = transcode._decode_scale
    monkeypatch.setattr(transcode, "_decode_scale", lambda targets: scales.append(scale_of(targets)) or scales[-1])
    outcome.codecs_digest(JPEG)
    assert set(scales) == {1, 2, 4, 8}


def test_a_format_that_this_pillow_lacks_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = outcome.codecs_digest(JPEG)
    outcome._digest.cache_clear()
    open_image = pillow_decoder.open_image

    def lacking(data: bytes, name: str) -> Any:
        if name == "avif":
            raise ImageError("broken AVIF: not built in")
        return open_image(data, name)

    monkeypatch.setattr(pillow_decoder, "open_image", lacking)
    assert outcome.codecs_digest(JPEG) != before
