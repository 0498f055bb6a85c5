"""The installed codecs and resizers, and the CPU instructions that they use."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from presize.codecs import pillow_resize
from presize.codecs.compiled import Compiled
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.plugins import OPENCVS, installed
from presize.errors import PresizeWarning

_PILLOWS = ("pillow", "pillow-simd")
_OPENCV_INSTRUCTIONS = {"SSE4.1": "SSE4", "AVX2": "AVX2", "AVX512-SKX": "AVX-512", "NEON": "NEON"}
_RESIZE_INSTRUCTIONS = (None, "AVX2", "AVX-512")  # by the level of pillow_resize

Baseline = Literal["used", "not compiled", "not for this processor", "switched off", "failed its self-check"]
"""Use of presize's own compiled code, or the reason why it is not used."""


@dataclass(frozen=True)
class Jpeg:
    simplejpeg: str  # version
    libjpeg_turbo: str | None  # version inside simplejpeg; None if not known
    simd: bool | None  # whether it was built with SIMD; None if not known
    simd_limits: tuple[str, ...]  # environment variables, NAME=VALUE, that limit its use of SIMD
    baseline: Baseline  # presize's own decoder
    baseline_reason: str | None = None  # why that is switched off


@dataclass(frozen=True)
class Resizer:
    own: Baseline
    reason: str | None  # why it is switched off
    instructions: str | None  # SIMD instructions in use; None for plain C, or if it is not used


@dataclass(frozen=True)
class Pillow:
    version: str
    simd: bool  # whether it is pillow-simd
    libjpeg_turbo: str | None  # version; None for another libjpeg
    distributions: tuple[str, ...]  # installed ones that contain PIL


@dataclass(frozen=True)
class OpenCV:
    version: str  # empty if it is broken
    optimized: bool  # whether its optimized code is on
    instructions: tuple[str, ...]  # SIMD instructions in use
    threads: int  # in this process; presize's workers use one
    distributions: tuple[str, ...] = ()  # installed ones that contain cv2
    broken: str = ""  # why it cannot be imported


@dataclass(frozen=True)
class Codecs:
    jpeg: Jpeg
    resizer: Resizer
    pillow: Pillow
    opencv: OpenCV


def read_codecs(environ: Mapping[str, str] = os.environ) -> Codecs:
    """Import the codecs and return their features."""
    own, reason = _own(pillow_resize.compiled)
    module = pillow_resize.compiled.trusted()
    resizer = Resizer(own, reason, None if module is None else _RESIZE_INSTRUCTIONS[module.level()])
    return Codecs(_jpeg(environ), resizer, _pillow(), _opencv())


def _jpeg(environ: Mapping[str, str]) -> Jpeg:
    import simplejpeg
    from simplejpeg import _jpeg as module

    turbo, simd = None, None
    with contextlib.suppress(OSError, ValueError):  # ValueError for an empty file
        turbo, simd = libjpeg_turbo_in(Path(module.__file__))
    limits = tuple(f"{name}={value}" for name, value in sorted(environ.items()) if re.match("JSIMD_(FORCE|NO)", name))
    return Jpeg(simplejpeg.__version__, turbo, simd, limits, *_own(jpeg_decoder.compiled, ("x86_64", "aarch64")))


def _own(compiled: Compiled, processors: Sequence[str] = ()) -> tuple[Baseline, str | None]:
    """Return whether compiled code is used, and why it is switched off. `processors`: supported ones, () for all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PresizeWarning)  # a finding reports it
        is_used = compiled.trusted() is not None
    if is_used:
        return "used", None
    if compiled.off is not None:
        return "switched off" if compiled.off.by == "environment" else "failed its self-check", compiled.off.reason
    return "not for this processor" if processors and platform.machine() not in processors else "not compiled", None


def libjpeg_turbo_in(library: Path) -> tuple[str | None, bool | None]:
    """Return the version of the libjpeg-turbo inside `library`, and whether it has SIMD. No function tells, so both are
    read from its strings: only a build with SIMD contains the environment variable that switches SIMD off."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as binary:
        version = re.search(rb"libjpeg-turbo version (\d[\d.]*)", binary)
        return (version[1].decode(), re.search(rb"JSIMD_FORCE", binary) is not None) if version else (None, None)


def _pillow() -> Pillow:
    import PIL
    from PIL import features

    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    # Versions of pillow-simd are Pillow's with the suffix ".post0".
    return Pillow(PIL.__version__, "post" in PIL.__version__, turbo, tuple(installed(_PILLOWS)))


def _opencv() -> OpenCV:
    distributions = tuple(installed(OPENCVS))
    try:
        import cv2

        cv2.getNumThreads()
    except (ImportError, AttributeError) as error:  # removing another OpenCV may leave an empty folder
        return OpenCV("", False, (), 0, distributions, " ".join(str(error).split()) or type(error).__name__)
    # "SSE SSE2 SSE3 *SSE4.1 *AVX2 *AVX512-SKX?": a star marks code chosen at run time, a question mark instructions
    # that this CPU lacks.
    used = {word.lstrip("*") for word in cv2.getCPUFeaturesLine().split() if not word.endswith("?")}
    instructions = tuple(said for name, said in _OPENCV_INSTRUCTIONS.items() if name in used)
    return OpenCV(cv2.__version__, cv2.useOptimized(), instructions, cv2.getNumThreads(), distributions)
