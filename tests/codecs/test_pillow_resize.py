"""presize's resize returns the bytes of Pillow's on every processor, and accesses no other memory."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import mmap
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import pillow_model
from effort import examples
from presize.codecs import pillow_resize
from presize.codecs.compiled import VARIABLE
from presize.codecs.pillow_resize import (
    Box,
    Filter,
    Whole,
    installed_order,
    resize,
    resize_as_installed,
    resize_by,
    row_sink,
)
from presize.errors import PresizeWarning

ROOT = Path(__file__).parents[2]
Pixels = npt.NDArray[np.uint8]
MODULE: Any = pillow_resize.compiled.trusted()
LEVELS = range(0 if MODULE is None else MODULE.level() + 1)
"""Plain C, AVX2, AVX-512."""
_NO_ACCESS = 0

compiled = pytest.mark.skipif(MODULE is None, reason="_pillow_resize.c is not compiled, or off")


class Job(NamedTuple):
    """A resize of an image: its (height, width) and channels, the new size, the filter."""

    shape: tuple[int, int]
    channels: tuple[int, ...]
    size: tuple[int, int]
    filter: Filter


sides = st.integers(1, 300) | st.integers(1, 12)
shapes, filters = st.tuples(sides, sides), st.sampled_from(get_args(Filter))
jobs = st.builds(Job, shapes, st.sampled_from([(), (1,), (2,), (3,), (3,), (4,)]), shapes, filters)


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box | None:
    """Draw None, or a part of an image, with or without fractions of pixels."""
    if draw(st.booleans()):
        return None
    ends = []
    for side in (width, height):
        numbers = st.integers(0, side) if draw(st.booleans()) else st.floats(0, side, width=32)
        ends.append(sorted((float(draw(numbers)), float(draw(numbers)))))
    (left, right), (top, bottom) = ends
    return (left, top, right, bottom) if left < right and top < bottom else None


def noise(shape: tuple[int, ...], seed: int) -> Pixels:
    """Return noise, a fifth of it black and a fifth white, for extreme sums."""
    return np.random.default_rng(seed).integers(-64, 320, shape).clip(0, 255).astype(np.uint8)


VIEWS: dict[str, Callable[[Pixels], Pixels]] = {
    "a part": lambda pixels: pixels[3:-2, 5:-1],
    "mirrored": lambda pixels: pixels[:, ::-1],
    "upside down": lambda pixels: pixels[::-1],
    "turned around": lambda pixels: pixels[-2:2:-1, -3:4:-1],
    "every second row": lambda pixels: pixels[::2],
}
"""Memory layouts of the pixels of an image."""


@compiled
@settings(max_examples=examples(250), deadline=None)
@given(st.data(), jobs, st.booleans(), st.booleans())
def test_every_level_returns_the_bytes_of_the_definition(
    data: st.DataObject, job: Job, vertical_first: bool, flip: bool
) -> None:
    (height, width), channels, size, filter = job
    view = VIEWS[data.draw(st.sampled_from(list(VIEWS)))]
    pixels = view(noise((2 * height + 6, width + 8, *channels), height))[:height, :width]
    box = data.draw(boxes(*pixels.shape[:2]))
    alpha = channels == (4,) and not vertical_first
    expected = pillow_model.resize(pixels, size, filter, box, vertical_first, alpha)
    check_levels(expected, pixels, size, filter, box, vertical_first=vertical_first, flip=flip, alpha=alpha)


def check_levels(expected: Pixels, *resized: Any, flip: bool, **how: Any) -> None:
    for level in LEVELS:
        found = resize_by(MODULE, *resized, flip=flip, level=level, **how)
        assert found is not None and found.flags.c_contiguous
        np.testing.assert_array_equal(found[:, ::-1] if flip else found, expected, f"level {level}")


@compiled
@settings(max_examples=examples(200), deadline=None)
@given(st.data(), jobs, st.booleans(), st.booleans())
def test_a_part_of_an_image_yields_the_same_part_of_the_result(
    data: st.DataObject, job: Job, vertical_first: bool, flip: bool
) -> None:
    shape, channels, (to_height, to_width), filter = job
    image = noise((*shape, *channels), shape[0])
    image = data.draw(st.sampled_from([image, image[:, ::-1]]))
    size = data.draw(st.sampled_from([(to_height, to_width), (shape[0], to_width), (to_height, shape[1]), shape]))
    (top, rows), (left, columns) = (data.draw(parts(side)) for side in size)
    expected = pillow_model.resize(image, size, filter, None, vertical_first)[top : top + rows, left : left + columns]
    first_row, end_row = needed(shape[0], size[0], top, rows, filter)
    first_column, end_column = needed(shape[1], size[1], left, columns, filter)
    whole = Whole(shape, (first_row, first_column), size, (top, left))
    pixels = image[first_row:end_row, first_column:end_column]
    check_levels(expected, pixels, (rows, columns), filter, vertical_first=vertical_first, flip=flip, whole=whole)


def parts(side: int) -> st.SearchStrategy[tuple[int, int]]:
    """Draw the start and length of a part of a side."""
    return st.integers(0, side - 1).flatmap(lambda begin: st.tuples(st.just(begin), st.integers(1, side - begin)))


def needed(inputs: int, outputs: int, begin: int, count: int, filter: Filter) -> tuple[int, int]:
    """Return the inputs that a part of the outputs needs."""
    if inputs == outputs:
        return begin, begin + count
    step = inputs / outputs
    reach = pillow_model.FILTERS[filter][1] * max(step, 1) + 1
    return max(0, int(begin * step - reach)), min(inputs, int((begin + count) * step + reach) + 1)


@compiled
@settings(max_examples=examples(200), deadline=None)
@given(st.data(), jobs, st.integers(1, 31), st.lists(shapes, max_size=2))
def test_rows_given_one_after_the_other_yield_the_bytes_of_the_whole_image(
    data: st.DataObject, job: Job, rows: int, more: list[tuple[int, int]]
) -> None:
    (height, width), channels, size, filter = job
    pixels, sink, made = noise((height, width, *channels), height), None, []
    for size in (job.size, *more):
        out, box = np.empty((*size, *channels), np.uint8), data.draw(boxes(height, width)) or (0, 0, width, height)
        found = row_sink((height, width), out, filter, box, sink)
        if found is None:  # an axis keeps its size
            assert (0, height) == (box[1], box[3]) == (0, size[0]) or (0, width) == (box[0], box[2]) == (0, size[1])
        else:
            sink = found
            made.append((out, box))
    if sink is not None:
        pillow_model.give_rows(sink, pixels, rows)
    for out, box in made:
        np.testing.assert_array_equal(out, pillow_model.resize(pixels, out.shape[:2], filter, box))


@compiled
@pytest.mark.parametrize("shape", [(20, 31, 3), (21, 30, 3), (20, 30, 4)])
def test_a_sink_of_the_rows_of_another_image_is_refused(shape: tuple[int, ...]) -> None:
    first = row_sink((20, 30), np.empty((9, 9, 3), np.uint8), "bicubic", (0, 0, 30, 20))
    out, box = np.empty((9, 9, *shape[2:]), np.uint8), (0, 0, shape[1], shape[0])
    with pytest.raises(ValueError, match="those of other sizes"):
        row_sink(shape[:2], out, "bicubic", box, first)
    with pytest.raises(ValueError, match="PyCapsule"):
        row_sink(shape[:2], out, "bicubic", box, object())


@compiled
def test_a_part_without_the_pixels_that_it_needs_is_refused() -> None:
    pixels = noise((20, 30, 3), 0)
    for start in ((0, 0), (5, 0), (0, 5)):
        whole = Whole((40, 60), start, (20, 30), (0, 0))
        assert (resize(pixels, (9, 14), "bilinear", whole=whole) is None) == (start != (0, 0))
    assert resize(pixels, (9, 15), "bilinear", whole=Whole((40, 60), (0, 0), (20, 30), (0, 0))) is None


@compiled
@pytest.mark.parametrize(
    ("shape", "size"),
    [((3, 9000), (2, 5)), ((9000, 3), (5, 2)), ((1, 1), (700, 300)), ((2, 3), (1, 1)), ((70, 900), (9, 33))],
)
def test_extreme_ratios_have_the_bytes_of_the_definition(shape: tuple[int, int], size: tuple[int, int]) -> None:
    for filter, channels in itertools.product(get_args(Filter), [(), (2,), (3,), (4,)]):
        pixels = noise((*shape, *channels), 0)
        check_levels(pillow_model.resize(pixels, size, filter), pixels, size, filter, flip=False)


MODES = {(): "L", (3,): "RGB", (4,): "RGBX"}


def by_pillow(pixels: Pixels, size: tuple[int, int], filter: Filter, box: Box | None) -> Pixels:
    height, width = pixels.shape[:2]
    image = Image.frombytes(MODES[pixels.shape[2:]], (width, height), pixels.tobytes())
    return np.asarray(image.resize(size[::-1], Image.Resampling[filter.upper()], box))


@compiled
@pytest.mark.skipif(installed_order() == "another", reason="another library is installed instead of Pillow")
@settings(max_examples=examples(400), deadline=None)
@given(st.data(), jobs, st.sampled_from(list(MODES)))
def test_the_bytes_equal_those_of_the_installed_pillow(
    data: st.DataObject, job: Job, channels: tuple[int, ...]
) -> None:
    (height, width), _, size, filter = job
    pixels, box = noise((height, width, *channels), width), data.draw(boxes(height, width))
    found = resize_as_installed(pixels, size, filter, box)
    if found is None:
        assert installed_order() == "horizontal first" and height > 100 * width
    else:
        np.testing.assert_array_equal(found, by_pillow(pixels, size, filter, box))


@compiled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 3, 1), (40, 2, 4), (1, 300, 3), (224, 224, 3), (50, 460, 2)])
@pytest.mark.parametrize("size", [(230, 231), (20, 17)])
@pytest.mark.parametrize("vertical_first", [False, True])
def test_no_byte_outside_an_image_is_read(
    shape: tuple[int, ...], size: tuple[int, int], vertical_first: bool, level: int
) -> None:
    """The image lies between protected pages, as at the end of a shard: reading them would crash the process."""
    nbytes = math.prod(shape)
    room = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    how = {"vertical_first": vertical_first, "alpha": shape[2] == 4 and not vertical_first}
    expected = pillow_model.resize(noise(shape, 0), size, "bicubic", **how)
    with mmap.mmap(-1, room + 2 * mmap.PAGESIZE) as memory:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (start, start + mmap.PAGESIZE + room):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, _NO_ACCESS) == 0
        for offset in (mmap.PAGESIZE, mmap.PAGESIZE + room - nbytes):
            pixels = np.ndarray(shape, np.uint8, memory, offset)
            for view in (slice(None), slice(None, None, -1)):
                pixels[view] = noise(shape, 0)
                found = resize_by(MODULE, pixels[view], size, "bicubic", **how, level=level)
                np.testing.assert_array_equal(found, expected)
            del pixels


@compiled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(7, 5), (90, 70), (40, 5), (7, 33)])
@pytest.mark.parametrize("width", [1, 10, 33])
def test_no_byte_outside_the_result_is_written(shape: tuple[int, int], width: int, level: int) -> None:
    batch = np.full((3, 40, width, 3), 7, np.uint8)
    pixels = noise((*shape, 3), 0)
    found = resize_by(MODULE, pixels, (40, width), "lanczos", out=batch[1], level=level)
    assert found is not None and np.shares_memory(found, batch) and (batch[::2] == 7).all()
    np.testing.assert_array_equal(batch[1], pillow_model.resize(pixels, (40, width), "lanczos"))


@compiled
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_an_image_that_keeps_its_size_is_copied(view: Callable[[Pixels], Pixels]) -> None:
    pixels = view(noise((30, 40, 3), 0))
    for flip, expected in ((False, pixels), (True, pixels[:, ::-1])):
        found = resize(pixels, pixels.shape[:2], "lanczos", flip=flip)
        np.testing.assert_array_equal(found, expected)
        assert found is not None and not np.shares_memory(found, pixels)


IMAGE = noise((20, 30, 3), 0)


ODD_PIXELS = (
    IMAGE.astype(np.uint16), IMAGE.astype(np.int8), IMAGE[np.newaxis], IMAGE[:, 0, 0], noise((20, 30, 5), 0),
    IMAGE[:, ::2], IMAGE[:, :, ::-1], np.asfortranarray(IMAGE), IMAGE[:0], IMAGE[:, :, :0],
)  # fmt: skip
ODD_BOXES = (
    (-0.5, 0, 30, 20), (0, 0, 30, 20.5), (0, 0, 1e300, 20), (8, 0, 8, 20), (0, 12, 30, 10), (0, 0, math.nan, 20),
)  # fmt: skip


def test_unsupported_images_are_left_to_pillow() -> None:
    found = [resize(pixels, (9, 9), "bicubic") for pixels in ODD_PIXELS]
    found += [resize(IMAGE, size, "bicubic") for size in ((0, 9), (9, -1), (1 << 24, 9))]
    found += [resize(IMAGE, (9, 9), "bicubic", box) for box in ODD_BOXES]
    found += [resize(IMAGE, (9, 9), "nearest")]  # type: ignore[arg-type]
    assert found == [None] * len(found)


@compiled
def test_missing_memory_is_an_error() -> None:
    script = (
        "import resource; import numpy as np; from presize.codecs import pillow_resize as p\n"
        "pixels = np.broadcast_to(p.noise((2, 3)), (1 << 22, 2, 3))\n"  # many rows of the same memory
        "module = p.compiled.trusted(); resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "try: p.resize_by(module, pixels, (1, 4000), 'box', level=0)\n"
        "except MemoryError: print('refused')"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert ran.stdout == "refused\n", ran.stderr


@compiled
def test_images_on_which_versions_of_pillow_disagree_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow 12.2 and 12.3 resize images over 100 times as high as wide vertically first; earlier versions do not."""
    monkeypatch.setattr(pillow_resize, "installed_order", lambda: "horizontal first")
    for rows, height, is_left in ((200, 50, False), (201, 50, True), (201, 200, True), (201, 201, False)):
        pixels = noise((rows, 2, 3), 0)
        assert (resize_as_installed(pixels, (height, 9), "bicubic") is None) == is_left
        assert resize(pixels, (height, 9), "bicubic") is not None
    for order, is_left in (("vertical when it shrinks more", False), ("another", True)):
        monkeypatch.setattr(pillow_resize, "installed_order", lambda order=order: order)
        assert (resize_as_installed(noise((201, 2, 3), 0), (50, 9), "bicubic") is None) == is_left


@compiled
@pytest.mark.parametrize(
    "out",
    [np.empty((9, 9), np.uint8), np.empty((9, 9, 3), np.int8), np.empty((9, 18, 3), np.uint8)[:, ::2]],
    ids=["another shape", "another type", "not contiguous"],
)
def test_memory_that_does_not_fit_the_result_is_refused(out: Any) -> None:
    with pytest.raises(ValueError, match="out: expected uint8"):
        resize(IMAGE, (9, 9), "bicubic", out=out)


@compiled
@pytest.mark.parametrize("level", LEVELS)
def test_tables_of_other_images_are_refused(level: int) -> None:
    across = MODULE.table(30, 0, 30, 9, 1, 3, False, False, level)
    down = MODULE.table(20, 0, 20, 9, 1, 0, False, False, 0)
    out = np.empty((9, 9, 3), np.uint8)
    MODULE.resize(IMAGE, out, across, down, False, level)
    others = [
        (MODULE.table(29, 0, 29, 9, 1, 3, False, False, level), down),
        (MODULE.table(30, 0, 30, 8, 1, 3, False, False, level), down),
        (MODULE.table(30, 0, 30, 9, 1, 4, False, False, level), down),
        (MODULE.table(30, 0, 30, 9, 1, 3, False, False, (level + 1) % 3), down),
        (across, MODULE.table(19, 0, 19, 9, 1, 0, False, False, 0)),
        (across[:-1], down),
        (across + b"0", down),
        (b"", down),
        (across, None),
        (None, down),
        (None, None),
    ]
    for wrong in others:
        with pytest.raises(ValueError, match="tables are those of other sizes"):
            MODULE.resize(IMAGE, out, *wrong, False, level)


@compiled
@pytest.mark.parametrize("level", LEVELS)
def test_every_colour_under_every_alpha_is_premultiplied_and_restored_as_pillow_does(level: int) -> None:
    colors, covering = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    pixels = np.dstack((colors, 255 - colors, colors // 3, covering))[:, :253]
    expected = np.asarray(Image.fromarray(pixels).convert("RGBa").convert("RGBA"))
    found = resize_by(MODULE, pixels, pixels.shape[:2], "box", alpha=True, level=level)
    np.testing.assert_array_equal(found, expected)


@compiled
def test_alpha_without_four_channels_or_vertically_first_is_refused() -> None:
    for pixels, how in ((IMAGE, {}), (noise((90, 30, 4), 0), {"vertical_first": True})):
        assert resize(pixels, (9, 20), "bicubic", alpha=True, **how) is None
    for channels, tables, vertical_first in ((3, 2, False), (4, 1, False), (4, 2, True)):
        across = MODULE.table(20, 0, 20, 9, 1, channels, False, False, 0)
        down = MODULE.table(20, 0, 20, 9, 1, 0, False, False, 0) if tables == 2 else None
        pixels, out = (noise((side, other, channels), 0) for side, other in ((20, 20), (9 if down else 20, 9)))
        with pytest.raises(ValueError, match="alpha: expected four channels, both tables"):
            MODULE.resize(pixels, out, across, down, vertical_first, 0, True)


@compiled
@pytest.mark.parametrize("level", [-1, 3])
def test_a_level_that_no_processor_has_is_refused(level: int) -> None:
    with pytest.raises(ValueError, match="no such level"):
        MODULE.resize(IMAGE, IMAGE.copy(), None, None, False, level)
    with pytest.raises(ValueError, match="no such filter, number of channels or level"):
        MODULE.table(20, 0, 20, 9, 1, 3, False, False, level)


# ---- the self-check, and switching off ----


def test_the_self_check_has_the_checksums_of_the_definition() -> None:
    for filter, shape, size, box, checksums in pillow_resize.TRIED:
        for vertical_first, checksum in zip((False, True), checksums, strict=True):
            expected = pillow_model.resize(pillow_resize.noise(shape), size, filter, box, vertical_first)
            assert zlib.crc32(expected.tobytes()) == checksum
    filter, shape, size, checksum = pillow_resize.TRIED_ALPHA
    expected = pillow_model.resize(pillow_resize.noise(shape), size, filter, alpha=True)
    assert zlib.crc32(expected.tobytes()) == checksum
    assert len({before == after for *_, (before, after) in pillow_resize.TRIED}) == 2, "some do not reveal the order"


@pytest.fixture
def other_pillow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Pixels]], str]]:
    """Return the detected order of a Pillow that resizes by another function."""

    def order(function: Callable[..., Pixels]) -> str:
        def resized(image: Image.Image, size: tuple[int, int], resample: int, box: Box | None = None) -> Image.Image:
            filter = Image.Resampling(resample).name.lower()
            result = function(np.asarray(image), size[::-1], filter, box)
            return Image.frombytes(image.mode, size, result.tobytes())

        monkeypatch.setattr(Image.Image, "resize", resized)
        installed_order.cache_clear()
        return installed_order()

    yield order
    installed_order.cache_clear()


@pytest.mark.parametrize(
    ("vertical_first", "expected"), [(False, "horizontal first"), (True, "vertical when it shrinks more")]
)
def test_the_order_of_passes_of_the_installed_pillow_is_detected(
    vertical_first: bool, expected: str, other_pillow: Callable[..., str]
) -> None:
    assert other_pillow(functools.partial(pillow_model.resize, vertical_first=vertical_first)) == expected


@pytest.mark.parametrize("filter", get_args(Filter))
def test_a_library_with_other_bytes_for_one_filter_counts_as_another(
    filter: Filter, other_pillow: Callable[..., str]
) -> None:
    def off(pixels: Pixels, size: tuple[int, int], name: str, box: Box | None) -> Pixels:
        return pillow_model.resize(pixels, size, name, box) ^ np.uint8(name == filter)

    assert other_pillow(off) == "another"


def one_bit_off(pixels: Pixels, out: Pixels, *others: Any) -> None:
    MODULE.resize(pixels, out, *others)
    out[-1, -1, 0] ^= 1


@compiled
def test_code_that_returns_other_bytes_is_switched_off_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    module: Any = SimpleNamespace(level=MODULE.level, table=MODULE.table, resize=one_bit_off)
    monkeypatch.setattr(pillow_resize, "compiled", replace(pillow_resize.compiled, module=module))
    with pytest.warns(PresizeWarning, match="failed its self-check and is switched off in this process"):
        assert resize(IMAGE, (9, 9), "bicubic") is None
    assert not pillow_resize.is_available() and resize(IMAGE, (9, 9), "bicubic") is None


@compiled
def test_it_can_be_limited_to_instructions_of_every_processor() -> None:
    MODULE.limit(0)
    assert MODULE.level() == 0
    MODULE.limit(2)
    assert MODULE.level() == LEVELS[-1]
