"""Lazy PIL images: whatever is done with them, the results are those of Pillow's image of the same file."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from pictures import smooth_image
from presize.codecs.encode import encode
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg import tiles
from presize.codecs.stored_value import decode_value
from presize.datasets.reading.stored_image import StoredImage, StoredJpeg, to_output
from presize.errors import DatasetError, ImageError
from presize.options import MAX_PIXELS, Color, ImageOptions

HEIGHT, WIDTH = 150, 210
NOISY = np.clip(
    smooth_image(HEIGHT, WIDTH, seed=1) + np.random.default_rng(0).normal(0, 30, (HEIGHT, WIDTH, 3)), 0, 255
).astype(np.uint8)
RGB = encode(NOISY, ImageOptions())
GREY = encode(NOISY[:, :, 0], ImageOptions(color="gray"))
ALPHA = np.dstack([NOISY, NOISY[:, ::-1, 1]])
KINDS = ("rgb", "grey", "rgba")


def stored(value: bytes = RGB, color: Color = "rgb") -> StoredImage:
    return StoredImage(
        StoredJpeg(value, color, (HEIGHT, WIDTH), MAX_PIXELS, lambda error: DatasetError(f"damaged: {error}"))
    )


def plain(value: bytes = RGB, color: Color = "rgb") -> Image.Image:
    """Return Pillow's image of these pixels: both presize and Pillow upsample chroma like libjpeg-turbo by default."""
    image = Image.open(io.BytesIO(value))
    pixels = decode_value(memoryview(value), "jpeg", color, (HEIGHT, WIDTH))
    image.load()
    image.im = Image.fromarray(pixels).im
    return image


def pair(kind: str) -> tuple[Image.Image, Image.Image]:
    """Return presize's image and Pillow's."""
    if kind == "rgba":
        return to_output(ALPHA, "pil"), Image.fromarray(ALPHA).copy()
    value, color = (RGB, "rgb") if kind == "rgb" else (GREY, "keep")
    return stored(value, color), plain(value, color)  # type: ignore[arg-type]


def seen(result: Any) -> Any:
    """Return all observable properties of a result."""
    if isinstance(result, Image.Image):
        palette = result.getpalette() if result.mode == "P" else None
        return result.mode, result.size, result.format, result.info, palette, result.tobytes()
    if isinstance(result, np.ndarray):
        return result.shape, result.dtype, result.strides, result.flags.writeable, result.tobytes()
    if isinstance(result, (list, tuple)):
        return [seen(part) for part in result]
    return result


def outcome(use: Callable[[Image.Image], Any], image: Image.Image) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = seen(use(image))
        except Exception as error:
            found = type(error), str(error).replace(type(image).__name__, "Image")
    return found, [str(warning.message) for warning in caught]


def drawn(image: Image.Image) -> Image.Image:
    ImageDraw.Draw(image).rectangle((10, 10, 90, 50), fill=200 if image.mode == "L" else (200, 10, 30))
    return image


def through_pixel_access(image: Image.Image) -> Image.Image:
    image.load()[3, 4] = 9 if image.mode == "L" else (9,) * len(image.mode)
    return image


def after(change: Callable[[Image.Image], Any]) -> Callable[[Image.Image], Image.Image]:
    return lambda image: (change(image), image)[1]


def saved(image: Image.Image, **options: Any) -> bytes:
    image.save(buffer := io.BytesIO(), **options)
    return buffer.getvalue()


def with_few_pixels(use: Callable[[], Any]) -> Any:
    """Lower the limit of pixels above which Pillow warns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 9_000)
        return use()


BOX = (20.5, 10, 150.25, 99)
USES: dict[str, Callable[[Image.Image], Any]] = {
    # lazy, or partly lazy
    "itself": lambda image: image,
    "array": np.asarray,
    "array copied": lambda image: np.array(image, copy=True),
    "array that is made writable": lambda image: np.asarray(image).setflags(write=True),
    "tobytes": lambda image: image.tobytes(),
    "tobytes of a mode": lambda image: image.tobytes("raw", image.mode),
    "tobytes of another order": lambda image: image.tobytes("raw", image.mode[::-1]),
    "copy": lambda image: image.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "pickle of a crop": lambda image: pickle.loads(pickle.dumps(image.crop((1, 2, 30, 40)))),
    "crop": lambda image: image.crop((10, 20, 150, 90)),
    "crop of all": lambda image: image.crop(),
    "crop of a crop": lambda image: image.crop((10, 20, 150, 90)).crop((5, 5, 100, 60)),
    "crop outside": lambda image: image.crop((-5, 20, 300, 90)),
    "crop of numpy's numbers": lambda image: image.crop(tuple(np.array([10, 20, 150, 90]))),
    "crop of an array": lambda image: image.crop(np.array([10, 20, 150, 90])),
    "crop of nothing": lambda image: image.crop((10, 10, 10, 10)).size,
    "crop backwards": lambda image: image.crop((50, 10, 10, 40)),
    "crop of NaN": lambda image: image.crop((float("nan"), 0, 10, 10)),
    "crop of many pixels": lambda image: with_few_pixels(lambda: image.crop((10, 20, 150, 90))),
    "two crops": lambda image: [image.crop((x, 1, x + 9, 20)) for x in (5, 90)],
    "resize by default": lambda image: image.resize((30, 20)),
    "resize to a list": lambda image: image.resize([30, 20]),
    "resize to itself": lambda image: image.resize((WIDTH, HEIGHT)),
    "resize to floats": lambda image: image.resize((30.0, 20)),
    "resize to nothing": lambda image: image.resize((0, 20)),
    "resize to too much": lambda image: image.resize((1 << 40, 20)),
    "resize by an unknown filter": lambda image: image.resize((30, 20), 17),
    "resize of a box of texts": lambda image: image.resize((30, 20), box=("1", "2", "30", "40")),
    "resize of a box outside": lambda image: image.resize((30, 20), box=(5, 5, WIDTH + 1, 20)),
    "resize of a box of the same size": lambda image: image.resize((30, 20), box=(7, 9, 37, 29)),
    "resize with a small gap": lambda image: image.resize((30, 20), reducing_gap=0.5),
    "resize with a gap": lambda image: image.resize((30, 20), reducing_gap=2.0),
    "resize of a box with a gap": lambda image: image.resize((30, 20), box=BOX, reducing_gap=1.1),
    "reduce": lambda image: image.reduce(3),
    "thumbnail": after(lambda image: image.thumbnail((40, 40))),
    "a turn by nothing known": lambda image: image.transpose(9),
    "rotate by 180": lambda image: image.rotate(180),
    "convert": lambda image: image.convert(),
    "convert to RGB": lambda image: image.convert("RGB"),
    "convert to L": lambda image: image.convert("L"),
    "convert to 1": lambda image: image.convert("1"),
    "convert to P": lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE, colors=8),
    "convert by a matrix": lambda image: image.convert("L", (0.5, 0.2, 0.1, 0)),
    "blur": lambda image: image.filter(ImageFilter.GaussianBlur(1.3)),
    "blur of each side": lambda image: image.filter(ImageFilter.GaussianBlur((0, 2))),
    "blur by default": lambda image: image.filter(ImageFilter.GaussianBlur),
    "blur backwards": lambda image: image.filter(ImageFilter.GaussianBlur(-1)),
    "point of a table": lambda image: image.point([*range(255, -1, -1)] * len(image.mode)),
    "point beyond the range": lambda image: image.point([2.5 * value - 90 for value in range(256)] * len(image.mode)),
    "point of a short table": lambda image: image.point([1, 2, 3]),
    "point of nothing known": lambda image: image.point(None),
    "point to another mode": lambda image: image.point(range(256), "1"),
    "histogram of a mask": lambda image: image.histogram(image.convert("1")),
    "equalize": ImageOps.equalize,
    "rotate by nearest": lambda image: image.rotate(31, fillcolor=9),
    "shift": lambda image: image.transform((70, 50), Image.Transform.AFFINE, [1, 0, -9.5, 0, 1, 3], fillcolor=None),
    "transform by a number for its method": lambda image: image.transform((70, 50), 0, (1, 0.1, 2, 0, 1, 3)),
    "transform to nothing": lambda image: image.transform((0, 5), Image.Transform.AFFINE, (1, 0, 2, 0, 1, 3)),
    "transform far away": lambda image: image.transform((5, 5), Image.Transform.AFFINE, (1, 0.1, 1e6, 0, 1, 3)),
    "transform outside an unknown colour": lambda image: image.transform(
        (5, 5), Image.Transform.AFFINE, (1, 0, 2, 0, 1, 3), fillcolor="no such colour"
    ),
    "crop of fractions": lambda image: image.crop((10.5, 20.4, 150.5, 90.6)),
    "crop of three": lambda image: image.crop((50, 10, 10)),
    "resize to less than nothing": lambda image: image.resize((-3, 20)),
    "resize of a box before": lambda image: image.resize((30, 20), box=(-1, 5, 20, 20)),
    "resize of a backward box": lambda image: image.resize((30, 20), box=(20, 5, 10, 20)),
    "a turn by a float": lambda image: image.transpose(1.0),
    "blur of nothing known": lambda image: image.filter(ImageFilter.GaussianBlur("1")),
    "point of few numbers": lambda image: image.point([True, 256, -1, 7] * 64 * len(image.mode)),
    "transform by little": lambda image: image.transform((5, 5), Image.Transform.AFFINE, (1, 0, 2)),
    # ordinary pixels
    "core": lambda image: image.im.size,
    "getpixel": lambda image: image.getpixel((3, 4)),
    "histogram": lambda image: image.histogram(),
    "split": lambda image: image.split(),
    "filter": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
    "rotate": lambda image: image.rotate(13, Image.Resampling.BILINEAR),
    "transform": lambda image: image.transform((70, 50), Image.Transform.AFFINE, (1, 0.1, 2, 0, 1, 3)),
    "point": lambda image: image.point(lambda value: 255 - value),
    "putpixel": after(lambda image: image.putpixel((0, 0), 0)),
    "pixel access": through_pixel_access,
    "draw": drawn,
    "paste": after(lambda image: image.paste(image.crop((0, 0, 40, 40)), (50, 60))),
    "putalpha": after(lambda image: image.putalpha(7)),
    "info that is changed": after(lambda image: image.info.update(a=1)),
    "info that a crop takes over": lambda image: after(lambda im: im.info.update(a=1))(image).crop((1, 1, 9, 9)),
    "save as JPEG": lambda image: saved(image, format="JPEG"),
    "save as it was": lambda image: saved(image, format="JPEG", quality="keep"),
    "save a crop as it was": lambda image: saved(image.crop((0, 0, 9, 9)), format="JPEG", quality="keep"),
    "save as PNG": lambda image: saved(image, format="PNG"),
    "what its file has": lambda image: [getattr(image, name, None) for name in ("quantization", "layers", "bits")],
    "what no file has": lambda image: image.nothing,
    "mimetype": lambda image: image.get_format_mimetype(),
    "exif": lambda image: dict(image.getexif()),
    "closed": after(lambda image: image.close()),
    "loaded and closed": lambda image: (image.load(), image.close(), image.crop((0, 0, 9, 9))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_it_is_used_like_any_other_image(use: str, kind: str) -> None:
    ours, theirs = pair(kind)
    assert outcome(USES[use], ours) == outcome(USES[use], theirs)
    assert outcome(lambda image: image, ours) == outcome(lambda image: image, theirs), "afterwards"


@st.composite
def steps(draw: st.DrawFn) -> Callable[[Image.Image], Any]:
    """Draw one step, with numbers that do not depend on the image."""
    edge = st.floats(0, 1) | st.sampled_from((0.0, 1.0))
    a, b, c, d = draw(edge), draw(edge), draw(edge), draw(edge)
    width, height = draw(st.integers(1, 260)), draw(st.integers(1, 260))
    resample = draw(st.sampled_from([*Image.Resampling, None]))
    exact, gap = draw(st.booleans()), draw(st.sampled_from((None, None, 1.0, 1.5, 3.0)))
    method = draw(st.sampled_from(Image.Transpose))
    mode = draw(st.sampled_from(("RGB", "L", "1", "RGBA", None)))

    def box(image: Image.Image) -> tuple[float, float, float, float]:
        edges = (min(a, b) * image.width, min(c, d) * image.height, max(a, b) * image.width, max(c, d) * image.height)
        return tuple(map(round, edges)) if exact else edges  # type: ignore[return-value]

    return draw(
        st.sampled_from(
            [
                lambda image: image.crop(box(image)),
                lambda image: image.crop(box(image)).resize((width, height), resample),
                lambda image: image.resize((width, height), resample),
                lambda image: image.resize((width, height), resample, box(image)),
                lambda image: image.resize((width, height), resample, box(image), gap),
                lambda image: image.transpose(method),
                lambda image: image.convert(mode),
                lambda image: image.copy(),
                lambda image: image.filter(ImageFilter.GaussianBlur(4 * a)),
                lambda image: image.point(lambda value: value * 2 * b),
                lambda image: image.rotate(360 * c, fillcolor=round(99 * d)),
                lambda image: ImageOps.equalize(image),
                lambda image: ImageOps.autocontrast(image),
                lambda image: after(lambda im: im.thumbnail((width, height), resample or 3))(image),
                lambda image: after(np.asarray)(image),
                lambda image: after(lambda im: im.load())(image),
                lambda image: after(lambda im: im.putpixel((0, 0), 7))(image),
                lambda image: pickle.loads(pickle.dumps(image)),
            ]
        )
    )


@given(kind=st.sampled_from(KINDS), steps=st.lists(steps(), min_size=1, max_size=5))
def test_any_sequence_of_steps_equals_that_of_pillow(kind: str, steps: list[Callable[[Image.Image], Any]]) -> None:
    """Intermediate images stay unchanged."""
    chains = []
    for image in pair(kind):
        chain = [image]
        try:
            for step in steps:
                chain.append(step(chain[-1]))
        except Exception as error:
            chain.append(Image.new("L", (1, 1)))
            chain.append(repr(error))  # type: ignore[arg-type]
        chains.append(chain)
    ours, theirs = chains
    assert list(map(seen, ours)) == list(map(seen, theirs))


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yield the list of decoded boxes."""
    boxes: list[Any] = []
    decode = jpeg_decoder.decode

    def noted(data: Any, mode: Any, shape: Any, box: Any = None, *rest: Any) -> Any:
        boxes.append(box)
        return decode(data, mode, shape, box, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(jpeg_decoder, "decode", noted)
        yield boxes


WHOLE = (0, 0, HEIGHT, WIDTH)
DECODED: dict[str, tuple[Callable[[Image.Image], Any], list[tuple[int, int, int, int]]]] = {
    "nothing": (
        lambda image: (image.size, image.mode, image.info, image.copy().crop((1, 2, 3, 4)), image.convert()),
        [],
    ),
    "a crop": (lambda image: np.asarray(image.crop((16, 32, 80, 64))), [(32, 16, 32, 64)]),
    "a crop that is shown twice": (
        lambda image: [np.asarray(crop) for crop in [image.crop((16, 32, 80, 64))] for _ in range(2)],
        [(32, 16, 32, 64)],
    ),
    "a crop of a crop, resized and mirrored": (
        lambda image: np.asarray(
            image.crop((16, 32, 116, 132)).crop((10, 20, 60, 50)).resize((40, 40), 2).transpose(0)
        ),
        [(52, 26, 30, 50)],
    ),
    "a crop as Pillow's pixels": (lambda image: image.crop((16, 32, 80, 64)).load(), [(32, 16, 32, 64)]),
    "the image, then a crop": (lambda image: (np.asarray(image), np.asarray(image.crop((16, 32, 80, 64)))), [WHOLE]),
    "several crops": (
        lambda image: [np.asarray(image.crop((x, 32, x + 20, 64))) for x in (16, 50, 90)],
        [(32, 16, 32, 20), WHOLE],
    ),
}


@pytest.mark.skipif(not jpeg_decoder.is_available(), reason="_jpeg_decoder.c is not compiled, or off")
@pytest.mark.parametrize("use", DECODED)
def test_only_needed_pixels_are_decoded_and_only_once(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    do, expected = DECODED[use]
    image = stored()
    with watched(monkeypatch) as boxes:
        do(image)
    assert boxes == expected


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_crop_is_read_only_from_its_tiles(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage elsewhere does no harm, with and without the compiled decoder."""
    region = tiles.cut_jpeg(RGB, 0, 0, 30, 40)
    assert region is not None and len(region.data) < len(RGB) / 2
    if not is_compiled:
        monkeypatch.setattr(jpeg_decoder, "is_available", lambda: False)
    damaged = RGB[: 3 * len(RGB) // 4] + b"\xff\xd0" + RGB[3 * len(RGB) // 4 + 2 :]
    assert seen(stored(damaged).crop((0, 0, 40, 30))) == seen(plain().crop((0, 0, 40, 30)))


DAMAGED = RGB[: len(RGB) // 2]
FIRST_USES: dict[str, Callable[[Image.Image], Any]] = {
    name: USES[name]
    for name in (
        "array", "tobytes", "pickle", "copy.deepcopy", "resize by default", "resize of a box of the same size",
        "thumbnail", "rotate by 180", "convert to L", "convert to 1", "core", "getpixel", "filter",
        "putpixel", "draw", "split", "save as PNG", "crop outside", "reduce",
    )
}  # fmt: skip


@pytest.mark.parametrize("use", FIRST_USES)
def test_damage_is_named_whatever_is_done_first(use: str) -> None:
    image = stored(DAMAGED)
    assert image.size == (WIDTH, HEIGHT)
    for part in (image, image.crop((0, 0, WIDTH, HEIGHT - 1))):
        with pytest.raises(DatasetError, match="damaged: "):
            FIRST_USES[use](part)


def test_a_damaged_header_is_found_at_once() -> None:
    with pytest.raises(ValueError):
        stored(b"no image")
    with pytest.raises(ValueError, match="the index says"):
        StoredJpeg(RGB, "rgb", (HEIGHT, WIDTH + 1), MAX_PIXELS, DatasetError)
    with pytest.raises(ImageError, match="max_pixels"):
        StoredJpeg(RGB, "rgb", (HEIGHT, WIDTH), 100, DatasetError)


def test_pixels_shared_by_images_are_never_written() -> None:
    image = stored()
    before = seen(plain())
    shown = np.asarray(image)
    others = [image.copy(), image.crop((0, 0, 50, 50)), image.convert("RGB"), image.resize(image.size)]
    expected = [seen(other) for other in others]
    for changed in (image.copy(), image.crop((0, 0, 50, 50)), image.convert("RGB")):
        drawn(changed).putpixel((1, 1), (0, 0, 0))
        through_pixel_access(changed)
    assert seen(image) == before
    drawn(image)
    assert [seen(other) for other in others] == expected
    assert np.array_equal(shown, np.asarray(plain()))


def test_it_equals_a_plain_image_of_its_pixels() -> None:
    same = plain().copy()
    assert stored() == same and same == stored() and stored() == stored()
    assert stored() != same.crop((0, 0, 9, 9)) and stored() != "an image" and stored() != plain()


def test_threads_see_the_same_pixels() -> None:
    image, found, expected = stored(), [], np.asarray(plain().crop((9, 9, 150, 140)))
    start = threading.Barrier(4)

    def use(number: int) -> None:
        start.wait()
        for _ in range(20):
            (np.asarray, lambda part: part.load(), lambda part: part.resize((9, 9)), seen)[number](image)
            found.append(np.array_equal(np.asarray(image.crop((9, 9, 150, 140))), expected))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80
