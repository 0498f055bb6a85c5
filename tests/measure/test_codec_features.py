"""Which codecs are in use, and what libjpeg-turbo was told."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from pathlib import Path
from types import ModuleType
from typing import Literal

import cv2
import PIL
import pytest
import simplejpeg

from presize.codecs.compiled import VARIABLE, Compiled, SwitchedOff
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.measure.codec_features import _libjpeg_turbo, read_codecs


def test_versions_are_those_that_are_installed() -> None:
    codecs = read_codecs({})
    assert codecs.jpeg.simplejpeg == simplejpeg.__version__
    assert codecs.resizer.version == importlib.metadata.version("cykooz.resizer")
    assert (codecs.pillow.version, codecs.opencv.version) == (PIL.__version__, cv2.__version__)
    assert codecs.pillow.distributions == ("pillow",)
    assert not codecs.pillow.simd


def test_pillow_simd_in_pillows_place_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    assert read_codecs({}).pillow.simd


def test_both_pillows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "pillow_simd-12.1.1.post0.dist-info" / "METADATA"
    information.parent.mkdir()
    information.write_text("Metadata-Version: 2.1\nName: pillow-simd\nVersion: 12.1.1.post0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert read_codecs({}).pillow.distributions == ("pillow", "pillow-simd")


def test_opencv_says_how_many_threads_it_has_and_whether_it_is_optimized() -> None:
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(3)
        cv2.setUseOptimized(False)
        opencv = read_codecs({}).opencv
        assert (opencv.threads, opencv.optimized) == (3, False)
    finally:
        cv2.setNumThreads(threads)
        cv2.setUseOptimized(True)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("SSE SSE2 SSE3 *SSE4.1 *SSE4.2 *AVX *FP16 *AVX2 *AVX512-SKX?", ("SSE4", "AVX2")),
        ("SSE SSE2 SSE3 *SSE4.1? *SSE4.2? *AVX2?", ()),
        ("NEON FP16 *NEON_DOTPROD", ("NEON",)),
        ("", ()),
    ],
    ids=["without AVX-512", "old", "ARM", "says nothing"],
)
def test_opencv_uses_what_the_cpu_has(
    features: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cv2, "getCPUFeaturesLine", lambda: features)
    assert read_codecs({}).opencv.instructions == expected


def test_presizes_own_decoder_is_used_where_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_codecs({}).jpeg.baseline == "used") == jpeg_decoder.is_available()
    monkeypatch.setattr(jpeg_decoder, "compiled", Compiled(None, jpeg_decoder.check))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert read_codecs({}).jpeg.baseline == "not compiled"
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert read_codecs({}).jpeg.baseline == "not for this processor"


@pytest.mark.parametrize(("by", "baseline"), [("environment", "switched off"), ("self-check", "failed its self-check")])
def test_what_has_switched_it_off_is_told(
    by: Literal["environment", "self-check"], baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Compiled(ModuleType("decoder"), lambda *_: SwitchedOff(by, "the reason"))
    monkeypatch.setattr(jpeg_decoder, "compiled", found)
    jpeg = read_codecs({}).jpeg
    assert (jpeg.baseline, jpeg.baseline_reason) == (baseline, "the reason")


def test_a_self_check_that_fails_is_a_finding_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(jpeg_decoder, "compiled", Compiled(ModuleType("decoder"), jpeg_decoder.check))
    jpeg = read_codecs({}).jpeg
    assert jpeg.baseline == "failed its self-check"
    assert str(jpeg.baseline_reason).startswith("it fails with AttributeError: ")


def test_the_libjpeg_turbo_inside_simplejpeg_is_known() -> None:
    jpeg = read_codecs({}).jpeg
    assert jpeg.libjpeg_turbo is not None
    assert int(jpeg.libjpeg_turbo.partition(".")[0]) >= 2


@pytest.mark.parametrize(
    ("binary", "expected"),
    [
        (b"\0libjpeg-turbo version 3.1.2 (build 2)\0JSIMD_FORCENONE\0", ("3.1.2", True)),
        (b"\0libjpeg-turbo version 2.1.5\0", ("2.1.5", False)),
        (b"\0another libjpeg\0", (None, None)),
    ],
    ids=["with SIMD", "without", "another"],
)
def test_a_library_tells_by_its_texts(binary: bytes, expected: tuple[object, object], tmp_path: Path) -> None:
    path = tmp_path / "_jpeg.so"
    path.write_bytes(bytes(5000) + binary + bytes(5000))
    assert _libjpeg_turbo(path) == expected


def test_what_the_environment_tells_libjpeg_turbo_is_told() -> None:
    environ = {"JSIMD_FORCESSE2": "1", "JSIMD_NOHUFFENC": "1", "PATH": "/bin", "MY_JSIMD_FORCENONE": "1"}
    assert read_codecs(environ).jpeg.simd_limits == ("JSIMD_FORCESSE2=1", "JSIMD_NOHUFFENC=1")
