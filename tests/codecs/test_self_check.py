"""presize's JPEG decoder is tested before its first use, and can be switched off."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from jpegs import compiled
from presize.codecs.compiled import VARIABLE
from presize.codecs.golden import decoder_images
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.errors import PresizeWarning

pytestmark = compiled

IMAGE = decoder_images()["4:2:0 with tiles"]
SHAPE = (35, 70)


REAL: Any = jpeg_decoder.compiled.trusted()


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that resets the decoder as in a new process, optionally with other functions."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def untry(**changed: Callable[..., Any]) -> None:
        names = ("limit", "decode", "tile_lengths", "recode")
        module: Any = REAL and SimpleNamespace(**{name: getattr(REAL, name) for name in names} | changed)
        monkeypatch.setattr(jpeg_decoder, "compiled", replace(jpeg_decoder.compiled, module=module))

    untry()
    return untry


def wrong_in_one_pixel(data: bytes, out: np.ndarray, *others: Any) -> bool:
    done = REAL.decode(data, out, *others)
    out.reshape(-1)[-1] ^= 1
    return done


def wrong_at_half_size(data: bytes, out: np.ndarray, *others: Any) -> bool:
    return (wrong_in_one_pixel if others[-1] == 2 else REAL.decode)(data, out, *others)


def failing(*_: Any) -> bool:
    raise RuntimeError("no such luck")


def wrong_in_one_bit(data: bytes, out: np.ndarray, interval: int) -> int:
    nbytes: int = REAL.recode(data, out, interval)
    if interval == 2:
        out[0] ^= 1
    return nbytes


BROKEN = {
    "a wrong pixel": ({"decode": wrong_in_one_pixel}, r"its pixels differ from libjpeg-turbo's \(4:2:0\)"),
    "a wrong pixel at half size": ({"decode": wrong_at_half_size}, r"its pixels differ from libjpeg-turbo's"),
    "takes nothing": ({"decode": lambda *_: False}, r"its pixels differ from libjpeg-turbo's \(4:2:0\)"),
    "raises": ({"decode": failing}, r"it fails with RuntimeError: no such luck"),
    "finds no tiles": ({"tile_lengths": lambda *_: None}, r"its tiles differ from the index \(4:2:0 with tiles\)"),
    "recodes nothing": ({"recode": lambda *_: 0}, r"recoding changes the scan \(4:2:0\)"),
    "a wrong bit": ({"recode": wrong_in_one_bit}, r"recoding changes the scan \(4:2:0 with restarts\)"),
}


@pytest.mark.parametrize(("functions", "found"), BROKEN.values(), ids=BROKEN)
def test_a_broken_decoder_is_switched_off_and_pixels_are_libjpegs(
    functions: dict[str, Callable[..., Any]], found: str, untried: Callable[..., None]
) -> None:
    untried(**functions)
    with pytest.warns(PresizeWarning, match=f"failed its self-check and is switched off in this process: {found}"):
        pixels = jpeg_decoder.decode_whole(IMAGE, "RGB", SHAPE, max_pixels=10**6)
    np.testing.assert_array_equal(pixels, simplejpeg.decode_jpeg(IMAGE))
    assert not jpeg_decoder.is_available() and jpeg_decoder.decode(IMAGE, "RGB", SHAPE) is None
    assert jpeg_decoder.compiled.off is not None and jpeg_decoder.compiled.off.by == "self-check"


def test_threads_that_decode_first_at_once_are_warned_once(untried: Callable[..., None]) -> None:
    untried(decode=wrong_in_one_pixel)
    together = threading.Barrier(8)

    def decode(_: int) -> object:
        together.wait()
        return jpeg_decoder.decode(IMAGE, "RGB", SHAPE)

    with warnings.catch_warnings(record=True) as said, ThreadPoolExecutor(8) as threads:
        warnings.simplefilter("always")
        assert list(threads.map(decode, range(8))) == [None] * 8
    assert len(said) == 1


def test_a_warning_that_is_an_error_leaves_it_switched_off(untried: Callable[..., None]) -> None:
    untried(decode=failing)
    with pytest.raises(PresizeWarning):
        jpeg_decoder.is_available()
    assert not jpeg_decoder.is_available()


def test_the_warning_names_the_caller(untried: Callable[..., None]) -> None:
    untried(decode=failing)
    with pytest.warns(PresizeWarning, match="self-check") as said:
        jpeg_decoder.decode(IMAGE, "RGB", SHAPE)
    assert said[0].filename == __file__


def test_a_forked_child_inherits_the_result() -> None:
    script = (
        "import os, sys; from presize.codecs.jpeg import decoder as jpeg_decoder\n"
        "jpeg_decoder.compiled.difference = lambda _: 'on purpose'; jpeg_decoder.is_available()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(int(jpeg_decoder.is_available()))\n"
        "sys.exit(os.waitpid(child, 0)[1])"
    )
    command = [sys.executable, "-W", "always", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert ran.returncode == 0
    assert ran.stderr.count("PresizeWarning") == 1


@pytest.mark.parametrize(
    ("value", "expected", "said"),
    [
        ("libjpeg", [], "PRESIZE_DECODER=libjpeg"),
        ("LIBJPEG", [], "PRESIZE_DECODER: expected auto, no-avx2 or libjpeg, got 'LIBJPEG'"),
        ("", ["self-check"], None),
        ("auto", ["self-check"], None),
        ("no-avx2", [0, "self-check"], None),
    ],
)
def test_it_is_tested_once_unless_the_environment_switches_it_off(
    value: str, expected: list[Any], said: str | None, monkeypatch: pytest.MonkeyPatch, untried: Callable[..., None]
) -> None:
    calls: list[int | str] = []
    monkeypatch.setenv(VARIABLE, value)
    untried(limit=calls.append)
    jpeg_decoder.compiled.difference = lambda _: calls.append("self-check")
    warned = pytest.warns(PresizeWarning, match=f"{said}; libjpeg-turbo") if value == "LIBJPEG" else nullcontext()
    with warned:
        assert jpeg_decoder.is_available() == (said is None)
    assert (jpeg_decoder.decode(IMAGE, "RGB", SHAPE) is None) == (said is not None)
    off = jpeg_decoder.compiled.off
    assert calls == expected and (off and off[:2]) == (said and ("environment", said))
