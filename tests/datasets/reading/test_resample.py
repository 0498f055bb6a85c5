"""Boxes of images -> the size of a batch: by the compiled code what OpenCV and torch make, and nothing beside it."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from presize.codecs.compiled import Compiled
from presize.datasets.reading import resample as resampling
from presize.datasets.reading.resample import across, down, resample
from presize.errors import PresizeWarning

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "datasets" / "reading"
_NO_ACCESS = 0
Pixels = npt.NDArray[np.uint8]

compiled = pytest.mark.skipif(
    resampling.compiled.trusted() is None, reason="_resample.c is not compiled here, has no AVX2, or is switched off"
)
windows = pytest.mark.parametrize(
    "window",
    [
        pytest.param(
            window,
            marks=pytest.mark.skipif(
                resampling.compiled.trusted() is None or resampling.compiled.trusted().window_bytes() < window,  # type: ignore[union-attr]
                reason="_resample.c is not compiled here, has no such instructions, or is switched off",
            ),
        )
        for window in (16, 64)
    ],
    ids=["AVX2", "AVX-512"],
)
sides = st.integers(1, 300)


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    """Of which a fifth is black and a fifth white: sums are largest and smallest there."""
    values = np.random.default_rng(seed).integers(-64, 320, (height, width, 3))
    return values.clip(0, 255).astype(np.uint8)


def by_libraries(pixels: Pixels, shape: tuple[int, int], flip: bool) -> Pixels:
    out = np.empty((*shape, 3), np.uint8)
    resampling.resample_by_libraries(pixels, out)
    return out[:, ::-1] if flip else out


def by_compiled_code(pixels: Pixels, shape: tuple[int, int], flip: bool, window: int) -> Pixels | None:
    out = np.empty((*shape, 3), np.uint8)
    taken = resampling.resample_by(resampling.compiled.trusted(), pixels, out, flip, window)  # type: ignore[arg-type]
    return out if taken else None


@windows
@settings(max_examples=examples(300))
@given(sides, sides, sides, sides, st.booleans(), st.integers(0, 9), st.integers(0, 99))
def test_the_compiled_code_makes_what_opencv_and_torch_make(
    window: int, height: int, width: int, to_height: int, to_width: int, flip: bool, beside: int, seed: int
) -> None:
    pixels = noise(height, width + 2 * beside, seed)[:, beside : beside + width]
    found = by_compiled_code(pixels, (to_height, to_width), flip, window)
    if found is None:
        assert max(height / to_height, width / to_width) > 3
    else:
        np.testing.assert_array_equal(found, by_libraries(pixels, (to_height, to_width), flip))


@windows
@pytest.mark.parametrize("outputs", [224, 192, 96])
def test_every_side_is_resized_to_the_usual_ones_as_libraries_do(outputs: int, window: int) -> None:
    for side in range(1, 3 * outputs):
        for shape, to in (((side, 2), (outputs, 2)), ((2, side), (2, outputs))):
            pixels = noise(*shape, side)
            found = by_compiled_code(pixels, to, flip=False, window=window)
            assert found is not None
            np.testing.assert_array_equal(found, by_libraries(pixels, to, flip=False), str(side))


@windows
@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("side", [3, 224, 250, 600])
def test_an_image_of_one_colour_keeps_it(value: int, side: int, window: int) -> None:
    found = by_compiled_code(np.full((side, side, 3), value, np.uint8), (224, 223), flip=True, window=window)
    assert found is not None and (found == value).all()


@windows
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (40, 2), (1, 300), (224, 224), (300, 250), (50, 460)])
def test_no_byte_behind_an_image_is_read(shape: tuple[int, int], window: int) -> None:
    """Behind it lies a page that may not be read, as where a shard ends: reading it would end the process."""
    nbytes = shape[0] * shape[1] * 3
    room = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    with mmap.mmap(-1, room + mmap.PAGESIZE) as memory:
        pixels = np.ndarray((*shape, 3), np.uint8, memory, offset=room - nbytes)
        end = ctypes.c_void_p(pixels.ctypes.data + nbytes)
        assert ctypes.CDLL(None).mprotect(end, mmap.PAGESIZE, _NO_ACCESS) == 0
        pixels[:] = noise(*shape)
        found = by_compiled_code(pixels, (230, 231), flip=False, window=window)
        np.testing.assert_array_equal(found, by_libraries(noise(*shape), (230, 231), flip=False))
        del pixels


@pytest.mark.parametrize("width", [1, 10, 11, 32, 50])
def test_no_byte_beside_a_row_of_the_batch_is_written(width: int) -> None:
    for before in ((7, 5), (90, 70)):
        batch = np.full((3, 40, width, 3), 7, np.uint8)
        resample(noise(*before), batch[1], flip=True)
        assert (batch[::2] == 7).all()
        np.testing.assert_array_equal(batch[1], by_libraries(noise(*before), (40, width), flip=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_other_channels_and_depths_are_resized_by_libraries(dtype: type, channels: int) -> None:
    if (dtype, channels) == (np.uint8, 3):
        return
    pixels = np.random.default_rng(0).integers(0, 256, (20, 70, channels)).astype(dtype)
    out, flipped = (np.empty((32, 48, channels), dtype) for _ in range(2))
    resample(pixels, out, flip=False)
    resample(pixels, flipped, flip=True)
    np.testing.assert_array_equal(out, flipped[:, ::-1])
    assert abs(float(out.mean()) - float(pixels.mean())) < 3


@compiled
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (across(21, 30, "linear", False, 16), down(20, 30, "linear")),
        (across(20, 31, "linear", False, 16), down(20, 30, "linear")),
        (across(20, 30, "linear", False, 16), down(19, 30, "linear")),
        (across(20, 30, "linear", False, 16), down(20, 29, "linear")),
        (across(20, 30, "antialiased", False, 16), down(20, 30, "linear")),
        (across(20, 30, "linear", False, 64), down(20, 30, "linear")),
        (b"", down(20, 30, "linear")),
        (across(20, 30, "linear", False, 16), b"\0" * 24),
    ],
)
def test_tables_of_other_sizes_are_refused(columns: bytes, rows: bytes) -> None:
    with pytest.raises(ValueError, match="tables are those of other sizes"):
        resampling.compiled.trusted().resize(noise(20, 20), noise(30, 30), columns, rows, True, 16)  # type: ignore[union-attr]


@compiled
@pytest.mark.parametrize("window", [0, 15, 128])
def test_a_window_that_no_processor_has_is_refused(window: int) -> None:
    tables = across(20, 30, "linear", False, 16), down(20, 30, "linear")
    with pytest.raises(ValueError, match="this processor has no such window"):
        resampling.compiled.trusted().resize(noise(20, 20), noise(30, 30), *tables, True, window)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "view",
    [lambda x: x[:, ::-1], lambda x: x[::-1], lambda x: x[:, :, ::-1], lambda x: x[:, ::2], np.asfortranarray],
    ids=["mirrored", "upside down", "BGR", "every second column", "in another order"],
)
@pytest.mark.parametrize("to", [(50, 60), (12, 13)])
def test_pixels_that_lie_in_memory_in_another_way_are_resized_all_the_same(
    view: Callable[[Pixels], Pixels], to: tuple[int, int]
) -> None:
    pixels, out = view(noise(20, 40)), np.empty((*to, 3), np.uint8)
    resample(pixels, out, flip=True)
    np.testing.assert_array_equal(out, by_libraries(np.ascontiguousarray(pixels), to, flip=True))


# ---- what switches it off ----


def one_grey_level_too_much(pixels: Pixels, out: Pixels, *tables: Any) -> bool:
    resampling_module.resize(pixels, out, *tables)
    out[-1, -1, 0] ^= 1
    return True


resampling_module: Any = resampling.compiled.trusted()


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the module as it is when just imported, with another function in the place of the compiled one."""

    def untry(resize: Callable[..., bool] | None = None) -> None:
        found = SimpleNamespace(window_bytes=resampling_module.window_bytes, resize=resize or resampling_module.resize)
        monkeypatch.setattr(resampling, "compiled", Compiled(found, resampling.check))  # type: ignore[arg-type]

    return untry


@compiled
def test_code_that_makes_other_pixels_is_switched_off_with_a_warning(untried: Callable[..., None]) -> None:
    untried(one_grey_level_too_much)
    out = np.empty((30, 30, 3), np.uint8)
    with pytest.warns(PresizeWarning, match="failed its self-check and is switched off in this process"):
        resample(noise(20, 20), out, flip=False)
    np.testing.assert_array_equal(out, by_libraries(noise(20, 20), (30, 30), flip=False))
    assert resampling.compiled.trusted() is None


@compiled
def test_a_warning_that_is_an_error_leaves_it_switched_off(untried: Callable[..., None]) -> None:
    untried(one_grey_level_too_much)
    with pytest.raises(PresizeWarning):
        resample(noise(20, 20), np.empty((30, 30, 3), np.uint8), flip=False)
    assert resampling.compiled.trusted() is None


@compiled
@pytest.mark.parametrize(
    ("value", "is_on"), [("", True), ("auto", True), ("libjpeg", False), ("no-avx2", False), ("nonsense", False)]
)
def test_the_variable_that_switches_the_decoder_off_switches_it_off(
    value: str, is_on: bool, untried: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESIZE_DECODER", value)
    untried()
    assert (resampling.compiled.trusted() is not None) == is_on


@compiled
def test_a_forked_child_inherits_the_outcome() -> None:
    script = (
        "import os, sys; from presize.datasets.reading import resample as r\n"
        "r.resample_by = lambda *_, **__: False; r.compiled.trusted()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(r.compiled.trusted() is not None)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("PresizeWarning") == 1


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_it_compiles_for_other_processors_where_it_refuses(tmp_path: Path) -> None:
    include = sysconfig.get_path("include")
    if not os.path.exists(f"{include}/Python.h"):
        pytest.skip("needs Python's headers")
    program = (
        f'#define Py_LIMITED_API 0x030B0000\n#include <Python.h>\n#undef __x86_64__\n#include "{SOURCES}/_resample.c"\n'
    )
    (tmp_path / "elsewhere.c").write_text(program)
    flags = ["-Wall", "-Wextra", f"-I{include}", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, tmp_path / "elsewhere.c", "-o", tmp_path / "_resample.so"], check=True)
    script = "import _resample as r; assert r.window_bytes() == 0; r.resize(0)"
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stderr.endswith("NotImplementedError: it takes AVX2\n")
